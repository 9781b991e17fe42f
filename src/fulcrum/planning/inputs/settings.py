"""The settings of a plan, declared once: Python and command line take name, type, default and help from here.

>>> declared_settings()["colluders"]
DeclaredSetting(name='colluders', type=<class 'int'>, default=0, help='Number of silos of each region ...')

`fulcrum.plan` has a keyword for each field of `Settings`. A plan file (`core/plan/plan_file.py`) has the results of the
settings: the parts of a recipe in place of its name, and an epsilon for each tier.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    get_origin,
)

from msgspec import Meta

from fulcrum.core.choices import (
    Accountant,
    AggregationName,
    Bound,
    Injection,
    Neighbours,
    Purpose,
    ServerName,
    Shrink,
    UnitName,
)
from fulcrum.errors import suggestion

if TYPE_CHECKING:  # commands that list options wait for no solver
    from fulcrum.core.plan.plan_file import Spectrum
    from fulcrum.planning.inputs.targets import Floor
    from fulcrum.planning.theory.allocation import AllocationRule

RecipeName: TypeAlias = Literal["paper", "joint"]
"""The names of `fulcrum.planning.inputs.recipes.RECIPES`, as a type for options."""

_Keywords = ParamSpec("_Keywords")
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a plan.

    Attributes:
        rounds: T, the number of releases of each silo.
        delta: The DP parameter, in (0, 1).
        epsilon: The target, for the innermost tier, or by observer: the name of a tier for an observer of the sums of
            the tier, "federation" for an observer of the global sum alone, "aggregator" for an observer of single
            releases (with masked sums "server+silo"). A silo's declared preference tightens the target of its region.
        accountant: "exact", the tight Gaussian curve, the default for research; or "renyi", the paper's Theorem 1,
            proven for sums of lattice noise and the default for deployment.
        allocation: One of `ALLOCATIONS`, "module:function", or a callable; each allocation is scaled to meet the same
            target.
        information: K in nats: the bound on the information about a silo's class concentration above its region, the
            floor included. Without a floor the bound is on the releases alone, not on all information.
        floor: The information floor in nats: a number, an array by silo, a mapping by region, or a `Coupling`.
        bound: "paper" or "capacity", a quarter of "paper": "capacity" tightens K, not epsilon.
        budget: U in units of C²; the plan then reaches the least worst K if a floor is given, else the least worst
            epsilon.
        recipe: "paper", or "joint", which chooses weights, clip and server together for the same guarantee with less
            noise; each of the next four settings replaces a part of the recipe.
        weights: The weights of silos in the model: "sizes", "equal" within a region, "least-noise", a number from 0
            (sizes) to 1 (least noise), or weights by silo. If the federation declares weights, the declared weights are
            the default.
        clip_norm: C, or "auto": C is 1, and updates are clipped at a share of C that follows from the noise, then
            scaled up; "auto" needs `parameters`.
        server: "sum"; "random-effects": the server pools the regional sums of all rounds by its knowledge of their
            noise; "momentum"; or a registered rule. Every rule but "sum" costs no privacy, but holds for targets on
            regions and silos alone.
        shrink: True if a server that pools removes the part of a sum that does not stand out of the noise, False if
            not; "even-heads" does so for a softmax head alone, "even-scale" with a prior from `public`. Earlier plans
            have "heads" and "one-scale", which shrink weak rows more, and "spectrum", a prior with several scales.
        public: Input variances of a softmax head, from public data (`fulcrum.public_spectrum`); the server that pools
            then shrinks the head by the spectrum prior, `shrink="even-scale"`.
        embedding: True if the inputs of `public` are the output of a frozen public network: the variances of other
            inputs may say nothing of the classes.
        least_influence: From 0 to 1: the least influence of every region, as a share of its influence by size, or by
            number of silos if sizes are unknown; see `Plan.influence`. The recipe's by default, 0.5 for "joint": 0
            needs the least noise; 1 keeps influence by size, which suits regions that may disagree about labels.
        disputed_influence: From 0 to 1: the same while the sums show that the other regions oppose the region with the
            least noise, if larger. The recipe's by default, 1 for "joint"; 0 heeds no dispute.
        parameters: d, the number of trainable parameters; None is the limit of large d.
        colluders: Silos of each region that may collude with the observer: colluders know their own noise.
        dropouts: Silos of each region that may be missing from a sum; a region with more missing sends no sum. Noise is
            counted without the worst colluders and dropouts together.
        injection: "silo", or "aggregator" if trusted regional aggregators draw the noise once.
        aggregation: "trusted", or "masked" if the server gets masked sums alone (regional sums, or the sum of the
            federation if the federation alone has a target); a sum of one silo is the update of the silo. The observer
            "server+silo" is then the server together with `colluders` silos of each region, at least one.
        unit: The unit of privacy: "silo", a silo's whole dataset; "person", all records of a person; or "record". With
            "person" and "record" every silo clips the gradient of each person at `clip_norm` and sends the sum.
        neighbours: For the units "person" and "record": "replace", or "add-remove" if a person comes or goes. Plans
            state epsilon in both conventions; this convention is the one of the targets.
        silos_per_person: The largest number of silos that hold records of one person, over all rounds and plans.
        persons_per_silo: The declared number of persons of each silo, where the federation declares no sizes.
        silo_clip: The largest sum of a silo's clipped gradients, in clip norms; by default the declared number of
            persons.
        silo_epsilon: A second target, for a silo as a whole, against an observer of the innermost tier.
        unit_name: The word for a person in all sentences, such as "patient".
        purpose: "research", or "deployment", which needs `parameters` and accounts for lattice noise.
        keys: Public keys by silo and region name, for the plan to carry.
        seed: For "misallocated".
    """

    rounds: Annotated[int, Meta(description="Number of rounds. Every silo sends one release in each round.")]
    epsilon: Annotated[
        float | Mapping[str, float] | None,
        Meta(
            description="Target epsilon over all rounds: one number for the innermost tier, or tier=number,... for "
            "several tiers. Default: none."
        ),
    ] = None
    delta: Annotated[float, Meta(description="Delta of the guarantee over all rounds, a probability in (0, 1).")] = 1e-5
    accountant: Annotated[
        Accountant | None,
        Meta(
            description="Rule that turns noise into epsilon: exact is the tight Gaussian curve, renyi the paper's "
            "Theorem 1. Default: exact for research, renyi for deployment."
        ),
    ] = None
    allocation: Annotated[
        "str | AllocationRule",
        Meta(
            description="Rule that divides the noise among silos: optimal, uniform, size, inverse-size, misallocated, "
            "least-under-collusion, or module:function for your own."
        ),
    ] = "optimal"
    information: Annotated[
        float | None,
        Meta(
            description="Target in nats: the most information that an observer above a region gains about a silo's "
            "class concentration, the information floor (--floor) included; without --floor, the information of the "
            "releases alone. Default: none."
        ),
    ] = None
    floor: Annotated[
        "Floor | None",
        Meta(
            description="Information floor in nats, the information about a silo that its group reveals with no "
            "release at all: one number, region=number,..., or coupling=number for a prior. Default: not declared."
        ),
    ] = None
    bound: Annotated[
        Bound,
        Meta(
            description="Formula of the information bound: paper, or capacity, the capacity of the Gaussian channel, "
            "at most a quarter of the paper's. The formula changes information in nats, never epsilon."
        ),
    ] = "paper"
    budget: Annotated[
        float | None,
        Meta(
            description="Noise variance to spend, in units of C², in place of a target. The plan reaches the smallest "
            "worst epsilon, or with --floor the smallest worst information. Default: none."
        ),
    ] = None
    colluders: Annotated[
        int,
        Meta(
            description="Number of silos of each region that may collude with an observer, who then knows their noise."
        ),
    ] = 0
    dropouts: Annotated[
        int, Meta(description="Number of silos of each region whose releases may be missing from a sum.")
    ] = 0
    parameters: Annotated[
        int | None,
        Meta(
            description="Number of trainable parameters of the model. Deployment plans and --clip-norm auto need the "
            "number. Default: the limit of many parameters."
        ),
    ] = None
    recipe: Annotated[
        str,
        Meta(
            description="Weights, clip norm and server rule together: paper, joint. With joint the same guarantee "
            "needs less noise. --weights, --clip-norm, --server and --shrink replace single parts."
        ),
    ] = "paper"
    weights: Annotated[
        str | float | Mapping[str, float] | None,
        Meta(
            description="Rule for the weights of silos: sizes, equal, least-noise, or a number from 0 (sizes) to 1 "
            "(least noise). With equal, silos of one region have equal weights, and every region keeps its share. "
            "Default: the weights that the federation declares, else the recipe's rule."
        ),
    ] = None
    clip_norm: Annotated[
        float | str | None,
        Meta(
            description="Clip norm C, the largest length of an update, or auto: updates are clipped at a share of C "
            "that follows from the noise. Default: the recipe's."
        ),
    ] = None
    server: Annotated[
        ServerName | None,
        Meta(
            description="Server rule, by which the server moves the model from the regional sums: sum, random-effects, "
            "momentum, or a registered name. Default: the recipe's."
        ),
    ] = None
    shrink: Annotated[
        Shrink | None,
        Meta(
            description="Have the server rule random-effects scale down the part of its estimate that does not stand "
            "out of the noise: for every model, or with --no-shrink for none. Default: the recipe's; joint does so for "
            "softmax heads alone."
        ),
    ] = None
    public: Annotated[
        "Spectrum | None",
        Meta(
            description="File of public inputs of a softmax head, as the model sees them, without records of the "
            "silos; or the name of built-in data, for research alone. The server then shrinks the head by a prior "
            "from the variances of the inputs. Default: no such prior."
        ),
    ] = None
    embedding: Annotated[
        bool,
        Meta(
            description="The inputs of --public are the output of a frozen public network. The variances of other "
            "inputs may say nothing of the classes, and the plan then advises to try the prior on public data."
        ),
    ] = False
    least_influence: Annotated[
        float | None,
        Meta(
            description="Share, from 0 to 1, of its influence by size that every region keeps at least; by number of "
            "silos where sizes are unknown. 0 needs the least noise, 1 insures best against regions with other labels. "
            "Default: the recipe's, 0.5 for joint and 0 for paper."
        ),
    ] = None
    disputed_influence: Annotated[
        float | None,
        Meta(
            description="The same share while the regional sums show that regions oppose each other, if larger; of a "
            "softmax head that the server rule random-effects moves. 0 heeds no dispute. Default: the recipe's, 1 for "
            "joint and 0 for paper."
        ),
    ] = None
    injection: Annotated[
        Injection,
        Meta(
            description="Party that draws the noise: silo, every silo its own; or aggregator, each regional aggregator "
            "once for its sum, which gives no guarantee against the aggregator."
        ),
    ] = "silo"
    aggregation: Annotated[
        AggregationName,
        Meta(
            description="Way to make sums: trusted, by aggregators that see single releases; or masked, so that the "
            "server gets sums of masked releases alone."
        ),
    ] = "trusted"
    unit: Annotated[
        UnitName,
        Meta(
            description="Unit of privacy: silo, a silo's whole dataset; person, all records of one person; or record, "
            "a single record."
        ),
    ] = "silo"
    neighbours: Annotated[
        Neighbours,
        Meta(
            description="Change between neighbouring federations for the units person and record: replace one person "
            "by another, or add-remove, so that one person comes or goes."
        ),
    ] = "replace"
    silos_per_person: Annotated[
        int, Meta(description="Largest number of silos that hold records of one person, over all rounds and plans.")
    ] = 1
    persons_per_silo: Annotated[
        float | None,
        Meta(
            description="Declared number of persons of each silo, for a federation without sizes and the units person "
            "and record. Default: the sizes of the federation."
        ),
    ] = None
    silo_clip: Annotated[
        float | None,
        Meta(
            description="Largest sum of the clipped gradients of a silo, as a number of persons. Default: the declared "
            "number of persons."
        ),
    ] = None
    silo_epsilon: Annotated[
        float | None,
        Meta(
            description="Second target epsilon, for a silo as a whole, against an observer of the innermost tier; for "
            "the units person and record. Default: none."
        ),
    ] = None
    unit_name: Annotated[
        str, Meta(description="Word for a person in every sentence, such as patient. Default: the name of the unit.")
    ] = ""
    seed: Annotated[int, Meta(description="Seed of the allocation `misallocated`; no other allocation has one.")] = 0
    purpose: Annotated[
        Purpose,
        Meta(
            description="Use of the plan: research has seeded noise and protects nobody; deployment has secure noise, "
            "can be signed, and needs --parameters."
        ),
    ] = "research"
    keys: Annotated[
        Mapping[str, str] | None,
        Meta(
            description="TOML file of public keys by name of silo or region, for the plan to carry. Default: no keys."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSetting:
    """A setting as declared.

    Attributes:
        name: The field of `Settings`.
        type: The type of the values.
        default: The default value; `MISSING` for a setting that must be given.
        help: One line on the setting.
    """

    name: str
    type: Any
    default: Any
    help: str

    @property
    def is_required(self) -> bool:
        """True if a value must be given."""
        return self.default is MISSING


@functools.cache
def declared_settings() -> dict[str, DeclaredSetting]:
    """Returns all settings by name, in the order of their declaration."""
    settings = {}
    for field in fields(Settings):
        kind, help_text = _type_and_help(field.type)
        settings[field.name] = DeclaredSetting(name=field.name, type=kind, default=field.default, help=help_text)
    return settings


def taking_keywords(
    settings: Callable[_Keywords, Settings],
) -> Callable[[Callable[[Any, Settings], _Made]], Callable[Concatenate[Any, _Keywords], _Made]]:
    """Returns a decorator that turns a function of settings into a function with a keyword for each setting.

    Editors, type checkers and `help` see the keywords.
    """

    def decorate(make: Callable[[Any, Settings], _Made]) -> Callable[Concatenate[Any, _Keywords], _Made]:
        @functools.wraps(make)
        def by_keywords(federation: Any, *args: _Keywords.args, **keywords: _Keywords.kwargs) -> _Made:
            names = declared_settings()
            if unknown := next((name for name in keywords if name not in names), ""):
                raise TypeError(f"{make.__name__}() has no setting {unknown!r}.{suggestion(unknown, names)}")
            return make(federation, settings(*args, **keywords))

        own = inspect.signature(make)
        declared = [
            parameter.replace(annotation=declared_settings()[name].type)
            for name, parameter in inspect.signature(settings).parameters.items()
        ]
        by_keywords.__signature__ = own.replace(parameters=[own.parameters["federation"], *declared])  # type: ignore[attr-defined]
        attributes = inspect.cleandoc(Settings.__doc__ or "").partition("Attributes:\n")[2]
        text = inspect.cleandoc(make.__doc__ or "")
        by_keywords.__doc__ = text[: text.index("    settings:")] + attributes
        return cast(Callable[Concatenate[Any, _Keywords], _Made], by_keywords)

    return decorate


def _type_and_help(annotation: Any) -> tuple[Any, str]:
    """Returns the type of an annotation and the help text in the annotation."""
    if get_origin(annotation) is not Annotated:
        return annotation, ""
    kind, *extras = get_args(annotation)
    return kind, next((meta.description or "" for meta in extras if isinstance(meta, Meta)), "")
