import msgspec
import numpy as np
import pytest
from error_codes import coded
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.core.messages.framing import decode, frame, unframe
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.core.messages.release_message import Release
from fulcrum.errors import ExchangeError


class Header(msgspec.Struct, forbid_unknown_fields=True):
    silo: str
    number: int = 1


HEADER = b"\x82\xa4silo\xa5lille\xa6number\x01"
LAYOUT = b"\x82\xa5names\x91\xa4head\xa6shapes\x91\x91\x02"


@given(payload=st.binary(max_size=50))
def test_a_message_comes_back_and_its_payload_is_not_copied(payload):
    data = frame(Header("lille"), payload)
    assert data == len(HEADER).to_bytes(4, "little") + HEADER + payload
    for given_as in (data, bytearray(data), memoryview(data)):
        header, rest = unframe(given_as, Header, "a greeting")
        assert (header, bytes(rest)) == (Header("lille"), payload)
        assert rest.obj is (data if isinstance(given_as, memoryview) else given_as)


@given(junk=st.binary(max_size=60))
def test_bytes_are_a_message_in_one_encoding_or_refused_in_one_line(junk):
    try:
        header, rest = unframe(junk, Header, "a greeting")
    except ExchangeError as error:
        told = str(error)
    else:
        told = "these bytes are not a greeting: they are" if frame(header, bytes(rest)) == junk else "another encoding"
    assert told.startswith("these bytes are not a greeting: ")
    assert told.isprintable()


@pytest.mark.parametrize(
    "header",
    [
        b"\x82\xa6number\x01\xa4silo\xa5lille",  # in another order
        b"\x82\xa4silo\xd9\x05lille\xa6number\x01",  # a text with a longer length than it needs
        b"\x81\xa4silo\xa5lille",  # a default left out
        b"\x83\xa4silo\xa5lille\xa4silo\xa5lille\xa6number\x01",  # a field twice
        HEADER + b"\x00",
        HEADER[:-1],
        b"",
    ],
)
def test_a_header_has_one_encoding(header):
    for refused in (
        lambda: unframe(len(header).to_bytes(4, "little") + header + b"rest", Header, "a greeting"),
        lambda: decode(header, Header, "a greeting"),
    ):
        with pytest.raises(ExchangeError, check=coded("message.malformed", noun="a greeting")):
            refused()
    assert decode(HEADER, Header, "a greeting") == Header("lille")


def test_what_is_no_bytes_is_refused_and_an_array_of_bytes_is_its_bytes():
    array = np.frombuffer(HEADER, np.uint8)
    for given_as in (array, array.view(np.int8), np.void(HEADER)):
        assert decode(given_as, Header, "a greeting") == Header("lille")
        assert unframe(np.frombuffer(frame(Header("lille")), np.uint8), Header, "a greeting")[0] == Header("lille")
    for other in (np.zeros(3, "M8[s]"), np.zeros(3, object), np.zeros(40, np.uint8)[::2], [1], None):
        for refused in (lambda: decode(other, Header, "a greeting"), lambda: unframe(other, Header, "a greeting")):  # noqa: B023
            with pytest.raises(ExchangeError, check=coded("message.malformed", noun="a greeting")):
                refused()


def test_a_senders_words_do_not_fill_the_log():
    loud = frame({"silo": "x", "number": 1, "line\nbreak\x1b[2J" * 1000: 1})
    for data in (loud, None, 7, "text", np.zeros(3)[::2]):
        with pytest.raises(ExchangeError) as caught:
            unframe(data, Header, "a greeting")
        assert len(str(caught.value)) < 140
        assert str(caught.value).isprintable()


def test_releases_sums_and_withheld_ones_are_known_byte_for_byte():
    """What is in ledgers and files of sums must be read for as long as they are."""
    where = {"plan_digest": "3f2a", "region": "north", "round_number": 2}
    layout = Layout(names=("head",), shapes=((2,),))
    for step, wire_step, wire_values in (
        (0.5, b"\xcb\x3f\xe0" + bytes(6), b"\x03" + bytes(7) + b"\xff" * 8),
        (None, b"\xc0", np.array([3.0, -1.0], dtype="<f8").tobytes()),
    ):
        made = {"layout": layout, "values": np.array([3, -1]), "step": step}
        named = b"\xa6region\xa5north\xacround_number\x02"
        header = (
            b"\x86\xabplan_digest\xa43f2a\xa4silo\xa5lille" + named + b"\xa6layout" + LAYOUT + b"\xa4step" + wire_step
        )
        sent = Release(**where, silo="lille", **made)
        assert sent.to_bytes() == len(header).to_bytes(4, "little") + header + wire_values
        members = b"\xa7members\x92\xa5lille\xa4metz\xa6layout"
        header = (
            b"\x87\xa4type\xadfulcrum.sum/1\xabplan_digest\xa43f2a" + named + members + LAYOUT + b"\xa4step" + wire_step
        )
        total = RegionalSum(**where, members=("lille", "metz"), **made)
        assert total.to_bytes() == len(header).to_bytes(4, "little") + header + wire_values
    withheld = Withheld(**where, missing=("metz",), reason="why")
    header = b"\x86\xa4type\xb2fulcrum.withheld/1\xabplan_digest\xa43f2a" + named
    header += b"\xa7missing\x91\xa4metz\xa6reason\xa3why"
    assert withheld.to_bytes() == len(header).to_bytes(4, "little") + header
