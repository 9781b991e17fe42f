"""The closed choices of a plan: types that files, Python, command line and page share.

>>> ACCOUNTANTS, AGGREGATIONS
(('exact', 'renyi'), ('trusted', 'masked'))
"""

from typing import Annotated, Literal, TypeAlias, get_args

from msgspec import Meta

MOST_ROUNDS = 10**9

LARGEST = 1e100
SMALLEST = 1e-100
"""Of numbers that are squared: the square of a larger or smaller one leaves double precision."""

Purpose: TypeAlias = Literal["research", "deployment"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
"""Research draws seeded noise and deploys nothing; deployment draws secure noise on a lattice, through a ledger."""

Accountant: TypeAlias = Literal["exact", "renyi"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)
"""`exact`: the tight Gaussian curve. `renyi`: the paper's Theorem 1, never tighter."""

Bound: TypeAlias = Literal["paper", "capacity"]
BOUNDS: tuple[Bound, ...] = get_args(Bound)
"""The information bound: the paper's, or the capacity of the Gaussian channel, at most a quarter of it."""

Injection: TypeAlias = Literal["silo", "aggregator"]
INJECTIONS: tuple[Injection, ...] = get_args(Injection)
"""The side that draws the noise: every silo its own, or once a trusted regional aggregator."""

AggregationName: TypeAlias = Literal["trusted", "masked"]
AGGREGATIONS: tuple[AggregationName, ...] = get_args(AggregationName)
"""The way sums are made: by trusted aggregators, which see single updates, or masked, so that the server gets sums."""

SERVER_NAME = r"^[a-z][a-z0-9-]{0,31}\Z"
ServerName: TypeAlias = Annotated[str, Meta(pattern=SERVER_NAME)]
"""The server's rule, by a name that `fulcrum.rules.rule_registry` knows. No silo needs to: a rule is post-processing.

Silos know that "sum" reads the global sum alone, and count every other rule as one that may read the sum of each
region. "random-effects" gives every region its least influence itself; with every other rule the weights do.
"""

HEADS: Literal["heads"] = "heads"
Shrink: TypeAlias = bool | Literal["heads"]
SHRINKS: tuple[Shrink, ...] = (True, False, HEADS)
"""The models that a pooling server shrinks: all, none, or softmax heads alone."""

WEIGHTS = ("sizes", "equal", "least-noise")
"""The rules for weights that have a name; a number from 0 to 1 lies between the first and the last."""

DECLARED, BY_SILO = "declared", "by-silo"
"""Weights without a rule: those that the federation declares, or those that were given by silo."""
