"""The closed choices of a plan: types that files, Python, command line and page share.

>>> ACCOUNTANTS, AGGREGATIONS
(('exact', 'renyi'), ('trusted', 'masked'))
"""

from typing import Annotated, Literal, TypeAlias, get_args

from msgspec import Meta

MOST_ROUNDS = 10**9

LARGEST = 1e100
SMALLEST = 1e-100
"""The range of numbers that are squared: squares of numbers outside of the range leave double precision."""

Purpose: TypeAlias = Literal["research", "deployment"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
"""Research draws seeded noise and deploys nothing; deployment draws secure noise on a lattice, through a ledger."""

Accountant: TypeAlias = Literal["exact", "renyi"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)
"""`exact`: the tight Gaussian curve. `renyi`: the paper's Theorem 1, never tighter."""

Bound: TypeAlias = Literal["paper", "capacity"]
BOUNDS: tuple[Bound, ...] = get_args(Bound)
"""The information bound: the paper's, or the capacity of the Gaussian channel, at most a quarter of the paper's."""

Injection: TypeAlias = Literal["silo", "aggregator"]
INJECTIONS: tuple[Injection, ...] = get_args(Injection)
"""The side that draws the noise: every silo its own noise, or a trusted regional aggregator once."""

AggregationName: TypeAlias = Literal["trusted", "masked"]
AGGREGATIONS: tuple[AggregationName, ...] = get_args(AggregationName)
"""The way of making sums: by trusted aggregators, which see single updates, or masked, so the server sees sums."""

UnitName: TypeAlias = Literal["silo", "person", "record"]
UNITS: tuple[UnitName, ...] = get_args(UnitName)
"""The unit of privacy: a silo's whole dataset, all records of a person, or a single record."""

Neighbours: TypeAlias = Literal["replace", "add-remove"]
NEIGHBOURS: tuple[Neighbours, ...] = get_args(Neighbours)
"""The change between neighbouring federations: the data of one unit are replaced, or come or go."""

SERVER_NAME = r"^[a-z][a-z0-9-]{0,31}\Z"
ServerName: TypeAlias = Annotated[str, Meta(pattern=SERVER_NAME)]
"""The name of the server's rule in `fulcrum.rules.rule_registry`. Silos need no registry: a rule is post-processing.

Silos know that "sum" reads the global sum alone, and assume that any other rule may read the sum of every region.
"random-effects" itself gives every region its least influence; with any other rule the weights do.
"""

HEADS: Literal["heads"] = "heads"
SPECTRUM: Literal["spectrum"] = "spectrum"
ONE_SCALE: Literal["one-scale"] = "one-scale"
EVEN_HEADS: Literal["even-heads"] = "even-heads"
EVEN_SCALE: Literal["even-scale"] = "even-scale"
PRIORS = (SPECTRUM, ONE_SCALE, EVEN_SCALE)
"""Shrinkage of softmax heads by public input variances: with several scales for the rows of a head, or with one."""

EVEN = (EVEN_HEADS, EVEN_SCALE)
"""The same as `HEADS` and `ONE_SCALE`, with factors of rows that are nearer to each other: the recipe's."""

SHRINKS_OF_HEADS = (HEADS, *PRIORS, EVEN_HEADS)
"""All shrinkage for softmax heads alone."""

Shrink: TypeAlias = bool | Literal["heads", "spectrum", "one-scale", "even-heads", "even-scale"]
SHRINKS: tuple[Shrink, ...] = (True, False, *SHRINKS_OF_HEADS)
"""The models that a pooling server shrinks: all, none, or softmax heads alone; heads also by public input variances."""

WEIGHTS = ("sizes", "equal", "least-noise")
"""The named rules for weights; a number from 0 to 1 lies between the first rule and the last."""

DECLARED, BY_SILO = "declared", "by-silo"
"""Weights without a rule: declared by the federation, or given by silo."""
