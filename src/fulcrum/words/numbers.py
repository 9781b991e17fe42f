r"""Figures, epsilons and foreign texts as people read them in a terminal, a chart or a page.

>>> figure(0.000123456), figure(12345.678), figure(math.inf)
('0.000123', '12,346', '∞')
>>> epsilon_text(10.0501), epsilon_text(math.inf)
('10.06', 'no guarantee')

Every figure behind a guarantee is rounded up. Every text from a file or a stranger goes through `printable`: a person
reads its characters, and no terminal obeys them.
"""

import math

from fulcrum.rounding import display_epsilon


def figure(value: float) -> str:
    """Returns a number at about four significant digits."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 0.001 else f"{value:.4g}"


def span(low: float, high: float) -> str:
    """Returns two figures as a span, or a single figure where both agree.

    >>> span(1.0, 1.0), span(1.0, 2.0)
    ('1', '1 to 2')
    """
    return figure(high) if high - low <= 1e-9 * high else f"{figure(low)} to {figure(high)}"


def percent(share: float) -> str:
    """Returns a share in percent with a single decimal, never as minus zero.

    >>> percent(0.8799), percent(-0.0001)
    ('88.0%', '0.0%')
    """
    return f"{round(100 * share, 1) + 0.0:.1f}%"


def epsilon_text(epsilon: float | None) -> str:
    """Returns an epsilon rounded up; "no guarantee" for None or an infinite epsilon."""
    if epsilon is None or math.isinf(epsilon):
        return "no guarantee"
    return figure(display_epsilon(epsilon))


def rate_text(rate: float) -> str:
    """Returns the rate of an observer's success in tenths of a percent, rounded up.

    >>> rate_text(0.55203)
    '55.3%'
    """
    return f"{math.ceil(round(rate * 1000, 9)) / 1000:.1%}"


def with_error(value: float, error: float | None, digits: str = ".3f") -> str:
    """Returns a figure with its standard error; None or NaN is no standard error.

    >>> with_error(0.75, 0.0123), with_error(1.5, None, "+.2f"), with_error(0.75, math.nan)
    ('0.750 ± 0.012', '+1.50', '0.750')
    """
    has_error = error is not None and not math.isnan(error)
    return f"{value:{digits}}" + (f" ± {error:{digits.removeprefix('+')}}" if has_error else "")


def printable(text: str) -> str:
    r"""Returns a text with every invisible character written out, since a terminal may obey invisible characters.

    >>> printable("lille\x1b[2J\u202e")
    'lille\\x1b[2J\\u202e'
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
