import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.aggregation.model_checks import check_model_layout, checked_model
from fulcrum.core.messages.framing import frame
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.model_message import (
    model_digest,
    model_layout,
    pack_model,
    unpack_model,
)
from fulcrum.errors import ExchangeError


def test_models_survive_the_wire():
    model = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(3.0), "c": np.zeros((0, 2))}
    back = unpack_model(pack_model(model))
    assert list(back) == list(model)
    for name, array in model.items():
        assert np.array_equal(back[name], array)
        assert back[name].shape == array.shape


def test_a_model_is_known_byte_for_byte():
    """Its digest binds what silos have released on it, so neither may ever change."""
    packed = pack_model({"head": np.array([[1.0], [-0.5]], dtype=np.float32)})
    header = b"\x82\xa5names\x91\xa4head\xa6shapes\x91\x92\x02\x01"
    assert packed == bytes([len(header), 0, 0, 0]) + header + np.array([1.0, -0.5], dtype="<f8").tobytes()
    assert model_layout(packed) == Layout(names=("head",), shapes=((2, 1),))
    assert model_digest(unpack_model(packed)) == "f78d4fe2a5fb6dd930f6528027e719b30bbe4f58d9ca3f74a88caca83cf25358"


def test_what_is_no_model_is_refused():
    packed = pack_model({"head": np.ones((2, 1))})
    for junk in (None, 7, "text", b"", b"\0" * 10, b"junk", packed[:3], packed[:20]):
        with pytest.raises(ExchangeError, check=coded("message.malformed", noun="a model")):
            unpack_model(junk)
    for other in (packed[:-8], packed[:-1], packed + b"\0", packed + bytes(8)):
        for read in (unpack_model, model_layout):
            with pytest.raises(ExchangeError, check=coded("message.payload-length", noun="a model", expected=16)):
                read(other)


def test_a_model_must_be_the_one_that_the_plan_was_made_for():
    plan = fulcrum.plan("isic-paper", rounds=2, epsilon=1.0, parameters=2)
    layout, flat = checked_model(plan, {"head": np.ones((2, 1))})
    assert (layout.parameters, flat.tolist()) == (2, [1.0, 1.0])
    for model, reason in (
        ({}, "the model has no parameters"),
        ({"head": np.ones(3)}, "the model has 3 parameters, the"),
    ):
        with pytest.raises(ExchangeError, match=reason):
            checked_model(plan, model)
    for names, shapes in ((("a", "a"), ((1,), (1,))), (("a",), ((-1, -2),)), (("a", "b"), ((2,),)), (("\n",), ((2,),))):
        with pytest.raises(ExchangeError, check=coded("message.layout-invalid", noun="the model")):
            check_model_layout(plan, Layout(names=names, shapes=shapes))


@pytest.mark.parametrize(
    "shape", [(2**62, 0), (0, 2**62), (2**21, 2**21, 2**21, 0), (2**63 - 1, 0), (0, *[1] * 64)], ids=str
)
def test_a_model_of_a_shape_that_no_array_has_is_refused_in_one_line(shape):
    """It has no coordinates, so its payload is whole; NumPy raises where such an array is made."""
    data = frame(Layout(names=("a",), shapes=(shape,)), b"")
    for read in (unpack_model, model_layout):
        with pytest.raises(ExchangeError, check=coded("message.layout-invalid", noun="the model")):
            read(data)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2**60 - 1, 0), [0] + [1] * 63], ids=str)
def test_a_model_of_a_shape_that_arrays_have_is_read(shape):
    data = frame(Layout(names=("a",), shapes=(tuple(shape),)), bytes(8) if shape == () else b"")
    assert unpack_model(data)["a"].shape == tuple(shape)


def test_the_digest_covers_names_shapes_order_and_every_bit():
    base = {"a": np.ones((2, 3)), "b": np.zeros(2)}
    same = {"a": np.asfortranarray(base["a"]), "b": np.zeros(2, dtype=np.float32)}
    assert model_digest(base) == model_digest(same)
    others = [
        {"a": np.ones((3, 2)), "b": np.zeros(2)},
        {"c": np.ones((2, 3)), "b": np.zeros(2)},
        {"b": np.zeros(2), "a": np.ones((2, 3))},
        {"a": np.ones((2, 3)), "b": np.array([0.0, 5e-324])},
        {"a": np.ones((2, 3))},
        {},
    ]
    assert len({model_digest(base), *map(model_digest, others)}) == 7
