"""Shares of a secret: known answers, any threshold of them, and nothing from fewer."""

import itertools
import secrets
from fractions import Fraction

import pytest
from error_codes import coded
from groups import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.aggregation.secret_recovery import secret_from, value_at_zero
from fulcrum.core.masking.secret_sharing import PRIME, SHARE_BYTES, shares_of, values_at
from fulcrum.errors import ExchangeError, ParameterError


def is_prime(number, rounds=40):
    """Miller and Rabin's test with random bases: a composite number passes with a chance below 4^-40."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(rounds):
        power = pow(secrets.randbelow(number - 3) + 2, odd, number)
        if power not in (1, number - 1) and number - 1 not in [pow(power, 2**step, number) for step in range(1, twos)]:
            return False
    return True


def test_the_field_is_the_least_prime_above_all_secrets():
    assert is_prime(PRIME)
    assert not any(is_prime(2**256 + offset) for offset in range(297))
    assert PRIME < 2 ** (8 * SHARE_BYTES)


def test_shares_are_those_of_the_textbook_example():
    """The example of the article "Shamir's secret sharing": 1234 + 166 x + 94 x^2 over the field of 1613."""
    textbook = {1: 1494, 2: 329, 3: 965, 4: 176, 5: 1188, 6: 775}
    assert values_at([1234, 166, 94], list(textbook), prime=1613) == list(textbook.values())
    for points in itertools.permutations(textbook, 3):
        assert value_at_zero(points, [textbook[point] for point in points], prime=1613) == 1234


def test_the_secret_is_what_lagrange_gives_in_exact_fractions():
    coefficients = [secrets.randbelow(2**256) for _ in range(4)]
    points = (1, 5, 6, 9)
    exact = [sum(coefficient * point**power for power, coefficient in enumerate(coefficients)) for point in points]
    at_zero = Fraction(0)
    for point, value in zip(points, exact, strict=True):
        factor = Fraction(1)
        for other in points:
            if other != point:
                factor *= Fraction(other, other - point)
        at_zero += factor * value
    assert at_zero == coefficients[0]
    assert value_at_zero(points, [value % PRIME for value in exact]) == coefficients[0]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_threshold_of_shares_gives_the_secret_back(data):
    secret = data.draw(st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([bytes(32), b"\xff" * 32])))
    points = data.draw(st.lists(st.integers(1, 600), unique=True, min_size=1, max_size=30))
    threshold = data.draw(st.integers(1, len(points)))
    shares = shares_of(secret, threshold=threshold, points=points)
    chosen = data.draw(st.permutations(points))[: data.draw(st.integers(threshold, len(points)))]
    assert secret_from({point: shares[point] for point in chosen}) == secret


def test_fewer_shares_than_the_threshold_fit_every_secret_equally():
    """Over the field of 7, all polynomials of degree 2: two shares leave every secret as likely as before."""
    seen = {}
    for secret, *others in itertools.product(range(7), repeat=3):
        pair = tuple(values_at([secret, *others], (2, 5), prime=7))
        seen.setdefault(pair, []).append(secret)
    assert all(sorted(fitting) == list(range(7)) for fitting in seen.values())
    assert len(seen) == 49


@pytest.mark.parametrize("threshold", [2, 3, 7])
def test_one_share_fewer_than_the_threshold_does_not_give_the_secret(threshold):
    """A polynomial of one degree less would pass every test above, and one holder fewer would unmask."""
    points = tuple(range(1, 10))
    for secret in (bytes(32), b"s" * 32, b"\xff" * 32):
        shares = shares_of(secret, threshold=threshold, points=points)
        for chosen in itertools.combinations(points, threshold - 1):
            values = [int.from_bytes(shares[point], "big") for point in chosen]
            assert value_at_zero(chosen, values) != int.from_bytes(secret, "big")


def test_two_sharings_of_one_secret_have_no_share_in_common():
    first, second = (shares_of(b"s" * 32, threshold=3, points=range(1, 9)) for _ in range(2))
    assert not set(first.values()) & set(second.values())
    assert (b"\0" + b"s" * 32) not in set(first.values()) | set(second.values())


@pytest.mark.parametrize(
    ("threshold", "points"), [(0, (1, 2)), (3, (1, 2)), (2, (1, 1, 2)), (2, (0, 1)), (2, (-1, 1)), (1, (PRIME,))]
)
def test_a_sharing_that_could_not_be_undone_is_refused(threshold, points):
    told = refusal(shares_of, bytes(32), threshold=threshold, points=points, kind=ParameterError)
    assert "different points above 0" in told


def test_what_are_no_shares_of_one_secret_gives_none():
    assert refusal(shares_of, bytes(31), threshold=1, points=(1,), kind=ParameterError).startswith(
        "a secret to be divided into shares must have 32 bytes, got 31"
    )
    with pytest.raises(ExchangeError, check=coded("mask.shares-malformed")):
        secret_from({})
    with pytest.raises(ExchangeError, check=coded("mask.shares-malformed")):
        secret_from({1: bytes(32)})
    with pytest.raises(ExchangeError, check=coded("mask.shares-malformed")):
        secret_from({1: PRIME.to_bytes(33, "big")})
    with pytest.raises(ExchangeError, check=coded("mask.shares-not-of-one-secret")):
        secret_from({1: (2**256).to_bytes(33, "big")})
