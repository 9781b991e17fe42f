import math
import subprocess
import sys

import pytest

from fulcrum.words.numbers import epsilon_text, figure, printable, rate_text, span, with_error

ORDERS = "a\x1b[2J\x1b]0;b\x07c\x9b31m\r\x7f\u202e\u2066[red]d"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0"), (0.99, "0.99"), (1234567.0, "1,234,567"), (1e-7, "1e-07"), (-float("inf"), "-∞")]
)
def test_figures_are_short(value, shown):
    assert figure(value) == shown


def test_epsilons_and_rates_are_rounded_up():
    assert epsilon_text(10.0501) == "10.06"
    assert epsilon_text(None) == epsilon_text(math.inf) == "no guarantee"
    assert (rate_text(0.5521), rate_text(0.552), rate_text(1.0)) == ("55.3%", "55.2%", "100.0%")


def test_a_span_of_one_figure_is_that_figure():
    assert span(2.0, 2.0 * (1 + 1e-12)) == "2"
    assert span(1.5, 2.0) == "1.5 to 2"


@pytest.mark.parametrize("error", [None, math.nan])
def test_a_figure_without_a_standard_error_stands_alone(error):
    assert with_error(0.75, error) == "0.750"
    assert with_error(0.75, 0.01) == "0.750 ± 0.010"
    assert with_error(1.0, 0.5, "+.2f") == "+1.00 ± 0.50"


def test_what_a_terminal_would_obey_is_written_out():
    assert printable("café ε ∞") == "café ε ∞"
    assert printable(ORDERS).isprintable()
    assert printable(ORDERS).startswith(r"a\x1b[2J\x1b]0;b\x07c\x9b31m\r\x7f\u202e\u2066[red]d")


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("report.html_report", ["rich"]),
        ("page.page_answers", ["rich", "fulcrum.views.report.html_report"]),
    ],
)
def test_pages_are_made_without_the_terminal_and_the_page_without_the_report(module, unneeded):
    script = f"import sys, fulcrum.views.{module}; print([name for name in {unneeded} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
