"""A round of FedJAX: `for_each_client` with its jit backend, its batching, clipping and sum."""

from importlib.metadata import version

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import workload
from fedjax.core import tree_util

fedjax.set_for_each_client_backend("jit")  # "pmap" on two devices took 5 times as long, "debug" hundreds
WEIGHT = 1 / workload.SILOS  # the silos are of one size


def loss(head, batch):
    """Cross-entropy of the softmax head."""
    chosen = jax.nn.log_softmax(batch["x"] @ head) * jax.nn.one_hot(batch["y"], workload.CLASSES)
    return -jnp.sum(chosen) / workload.BATCH


def client_init(head, key):
    """Starts from the global head."""
    return {"head": head, "key": key}


def client_step(state, batch):
    """One step of SGD."""
    step = jax.grad(loss)(state["head"], batch)
    return state | {"head": state["head"] - workload.LEARNING_RATE * step}


def client_final(head, state):
    """The weighted update, clipped and noised."""
    update = tree_util.tree_clip_by_global_norm(state["head"] - head, workload.CLIP)
    noise = jax.random.normal(state["key"], update.shape)
    return WEIGHT * (update + workload.CLIP * workload.NOISE * noise)


train = fedjax.for_each_client(client_init, client_step, client_final)
batching = fedjax.ShuffleRepeatBatchHParams(
    batch_size=workload.BATCH, num_epochs=None, num_steps=workload.STEPS, seed=None
)
silos, held_out = workload.records()
batches = [fedjax.ClientDataset({"x": x, "y": y}).shuffle_repeat_batch(batching) for x, y in silos]
head, key = jnp.asarray(workload.ZEROS), jax.random.PRNGKey(0)


def one_round():
    """Every silo trains and the sum of the updates is applied."""
    global head, key
    key, *keys = np.asarray(jax.random.split(key, workload.SILOS + 1))  # rows of NumPy are cheaper than JAX's
    updates = train(head, zip(range(workload.SILOS), batches, keys, strict=True))
    head = (head + tree_util.tree_sum(update for _, update in updates)).block_until_ready()


workload.report("fedjax", version("fedjax"), workload.timed(one_round), head, held_out)
