import pytest

from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.torch import torch_products
from fulcrum.simulation.torch.torch_products import layers_by_products

torch = pytest.importorskip("torch")

from stepping_silos import BATCH, SILOS, steps_of  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

pytestmark = pytest.mark.torch
BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}
SLIDING = [
    {},
    {"padding": 1},
    {"stride": 2},
    {"stride": 2, "padding": 1},
    {"stride": (2, 1), "padding": (0, 2)},
    {"stride": (1, 3), "padding": (2, 1), "dilation": (2, 1)},
    {"stride": (3, 2), "dilation": (1, 2)},
    {"stride": [2], "padding": [1], "dilation": [2]},
    {"padding": "same"},
    {"padding": "same", "dilation": (1, 2)},
    {"padding": "valid"},
    {"padding": 1, "groups": 2},
    {"stride": 2, "groups": 2},
]
KERNELS = [(3, 3), (1, 1), (2, 4), (5, 1)]


class Seen(TorchDispatchMode):
    """The operations that a call comes to."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class Images(torch.nn.Module):
    """Convolutions, pooling, group norms and dropout, on digits of 4 by 4."""

    def __init__(self, dropped=0.0):
        super().__init__()
        self.first, self.second = (
            torch.nn.Conv2d(1, 4, 3, padding=1),
            torch.nn.Conv2d(4, 6, 2, stride=2, padding="valid"),
        )
        self.norm, self.head, self.dropped = torch.nn.GroupNorm(2, 4), torch.nn.Linear(6, 2), torch.nn.Dropout(dropped)

    def forward(self, inputs):
        seen = functional.max_pool2d(torch.relu(self.norm(self.first(inputs.reshape(-1, 1, 4, 4)))), 2)
        return self.head(self.dropped(torch.relu(self.second(seen))).flatten(1))


def drawn(*shape, dtype=torch.float32):
    return torch.randn(SILOS, *shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def mapped(function, given):
    """Outputs of all silos and the gradients of what is given, in the forms of this module, and the operations."""

    def of_silo(*own):
        with layers_by_products():
            return function(*own)

    leaves = [each.detach().requires_grad_() for each in given]
    with Seen() as seen:
        found = torch.func.vmap(of_silo, randomness="different")(*leaves)
        gradients = torch.autograd.grad((found * weights_of(found)).sum(), leaves)
    return found, gradients, seen.names


def alone(function, given):
    """The same of each silo by itself, as torch does it."""
    outputs, gradients = [], []
    for silo in range(SILOS):
        leaves = [each[silo].detach().requires_grad_() for each in given]
        outputs.append(function(*leaves))
        gradients.append(torch.autograd.grad((outputs[-1] * weights_of(outputs[-1][None])[0]).sum(), leaves))
    return torch.stack(outputs), [torch.stack(each) for each in zip(*gradients, strict=True)]


def weights_of(found):
    """What makes the gradient of every output another one."""
    places = torch.arange(found[0].numel(), dtype=found.dtype).reshape(found.shape[1:])
    return torch.cos(places).expand(found.shape)


def check_equal(function, given, bound=None):
    outputs, gradients, names = mapped(function, given)
    expected, expected_gradients = alone(function, given)
    bound = BOUND[given[0].dtype] if bound is None else bound
    assert outputs.shape == expected.shape
    for one, other in zip((outputs, *gradients), (expected, *expected_gradients), strict=True):
        assert (one - other).abs().max() <= bound * other.abs().max().clamp(min=1)
    return names


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sliding", SLIDING, ids=str)
def test_a_convolution_of_silos_is_that_of_each_silo(sliding, kernel, dtype):
    groups = sliding.get("groups", 1)
    given = [
        drawn(BATCH, 4, 9, 8, dtype=dtype),
        drawn(6, 4 // groups, *kernel, dtype=dtype),
        drawn(6, dtype=dtype),
    ]
    names = check_equal(lambda images, weight, bias: functional.conv2d(images, weight, bias, **sliding), given)
    assert "bmm" in names
    assert not any("convolution" in name for name in names)


@pytest.mark.parametrize("sliding", SLIDING, ids=str)
def test_a_kernel_that_is_multiplied_at_once_as_on_a_gpu_gives_the_same(sliding, monkeypatch):
    monkeypatch.setattr(torch_products, "_unfolds_wholly", lambda images, weight: True)
    given = [drawn(BATCH, 4, 9, 8), drawn(6, 4 // sliding.get("groups", 1), 3, 3), drawn(6)]
    check_equal(lambda images, weight, bias: functional.conv2d(images, weight, bias, **sliding), given)


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("sliding", [{}, {"stride": 2, "padding": 1}, {"padding": "same", "dilation": 2}], ids=str)
def test_images_may_have_one_axis_or_three(sliding, axes):
    convolve = (functional.conv1d, functional.conv3d)[axes // 2]
    given = [drawn(BATCH, 3, *(7, 6, 5)[:axes]), drawn(4, 3, *(3, 2, 3)[:axes])]
    names = check_equal(lambda images, weight: convolve(images, weight, **sliding), given)
    assert not any("convolution" in name for name in names)


def test_arguments_may_be_named_and_a_bias_missing():
    given = [drawn(BATCH, 3, 6, 6), drawn(4, 3, 3, 3)]
    names = check_equal(lambda images, weight: torch.conv2d(weight=weight, input=images, padding=1), given)
    assert not any("convolution" in name for name in names)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular"])
def test_a_module_pads_its_images_as_it_says(mode):
    layer = torch.nn.Conv2d(3, 4, 3, padding=1, padding_mode=mode)

    def outputs(images, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (images,))

    names = check_equal(outputs, [drawn(BATCH, 3, 6, 6), drawn(4, 3, 3, 3), drawn(4)])
    assert not any("convolution" in name for name in names)


@pytest.mark.parametrize(
    ("shapes", "more"),
    [
        ([(3, 6, 6), (4, 3, 3, 3)], {}),  # a single image, without a batch
        ([(BATCH, 4, 6, 6), (4, 1, 3, 3)], {"groups": 4}),
    ],
    ids=["no batch", "by channel"],
)
def test_what_is_not_covered_is_left_to_torch(shapes, more):
    given = [drawn(*shape) for shape in shapes]
    assert any("convolution" in name for name in check_equal(lambda *own: functional.conv2d(*own, **more), given))


def test_half_precision_is_left_to_torch():
    given = [drawn(BATCH, 3, 6, 6).bfloat16(), drawn(4, 3, 3, 3).bfloat16()]
    names = check_equal(functional.conv2d, given, bound=0.02)
    assert any("convolution" in name for name in names)
    given = [drawn(BATCH, 3, 6, 6), drawn(4, 3, 3, 3)]
    names = check_equal(lambda *own: functional.group_norm(functional.conv2d(*own).bfloat16(), 2), given, bound=0.02)
    assert "native_group_norm" in names


def test_what_torch_refuses_is_refused_in_its_words():
    for shapes, words in (([(2, 4, 6, 6), (4, 3, 3, 3)], "channels"), ([(2, 3, 2, 6), (4, 3, 3, 3)], "size")):
        with pytest.raises(RuntimeError, match=words):
            mapped(functional.conv2d, [drawn(*shape) for shape in shapes])


def test_weights_that_silos_share_are_left_to_torch():
    weight, images = drawn(4, 3, 3, 3)[0], drawn(BATCH, 3, 6, 6)

    def of_silo(own):
        with layers_by_products(shared=[weight]):
            return functional.conv2d(own, weight)

    with Seen() as seen:
        found = torch.func.vmap(of_silo)(images)
    assert "convolution" in seen.names
    assert torch.equal(found, functional.conv2d(images.flatten(0, 1), weight).unflatten(0, (SILOS, BATCH)))


@pytest.mark.parametrize("more", [{}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}], ids=str)
@pytest.mark.parametrize("pool", [functional.max_pool2d, functional.avg_pool2d])
def test_pooling_after_a_convolution_gives_ties_to_the_same_place(pool, more):
    def outputs(images, weight):
        return pool(torch.relu(functional.conv2d(images, weight, padding=1)), 2, **more)

    images = drawn(BATCH, 3, 7, 6).sign()  # many outputs are equal, many are zero
    check_equal(outputs, [images, drawn(4, 3, 3, 3).sign()])


def test_pooling_tells_places_in_each_image():
    def outputs(images, weight):
        found, places = functional.max_pool2d(functional.conv2d(images, weight), 2, return_indices=True)
        return found * places

    check_equal(outputs, [drawn(BATCH, 3, 6, 6), drawn(4, 3, 3, 3)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_group_norm_after_a_convolution_is_that_of_each_silo(groups, dtype):
    def outputs(images, weight, *affine):
        return functional.group_norm(5 + functional.conv2d(images, weight), groups, *affine, eps=1e-3)

    images, weight, affine = (drawn(*shape, dtype=dtype) for shape in ((BATCH, 3, 6, 5), (4, 3, 3, 3), (2, 4)))
    for more in ([], [affine[:, 0], affine[:, 1]]):
        names = check_equal(outputs, [images, weight, *more])
        assert "native_group_norm" not in names


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # rare, and right
def test_gradients_within_a_module_are_differentiated_too():
    def outputs(images, weight, bias, scale):
        def size(own):
            seen = functional.group_norm(functional.conv2d(own, weight, bias, stride=2, padding=1), 2, scale, scale)
            return (functional.max_pool2d(seen, 2) ** 2).sum()

        return torch.func.grad(size)(images)

    check_equal(outputs, [drawn(*shape, dtype=torch.float64) for shape in ((BATCH, 3, 8, 8), (4, 3, 3, 3), (4,), (4,))])


def test_a_module_may_map_within_itself():
    def outputs(images, weights):
        return torch.func.vmap(functional.conv2d, in_dims=(None, 0))(images, weights)

    check_equal(outputs, [drawn(BATCH, 3, 6, 6), drawn(2, 4, 3, 3, 3)])


@pytest.mark.parametrize("dropped", [0.0, 0.5])
def test_a_recorded_step_of_images_is_the_mapped_one_to_the_bit(dropped):
    steps, given = steps_of(lambda: Images(dropped), load_task("digits"))
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        found.append(steps.gradients(*given))
        assert steps.record(*given)
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert all(gradient.any() for gradient in found[0])


def test_what_a_silo_keeps_for_gradients_is_measured_as_it_is_mapped():
    steps, (leaves, inputs, targets) = steps_of(Images, load_task("digits"))
    kept = []

    def count(tensor):
        kept[-1] += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        kept.append(0)
        steps.mapped_loss({name: leaf[0] for name, leaf in leaves.items()}, inputs[0], targets[0])
        kept.append(0)
        steps.losses(leaves, inputs, targets)
    assert kept[1] == pytest.approx(SILOS * kept[0], rel=0.02)
