"""What a deployment must state beyond its figures: the questions of NIST SP 800-226, each answered or owned up to.

>>> from fulcrum.planning.making import plan
>>> asked = questions_of(plan("consortium", rounds=10, epsilon=1.0), Answers())
>>> len(asked), [question.number for question in asked if question.unanswered]
(16, [1, 5, 7, 9, 10, 12, 14, 15, 16])

What a plan says is answered from the plan. What no software can know is asked for in a small TOML file, and shown as
unanswered until it is given. The questions follow the draft of NIST SP 800-226 of December 2023.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fulcrum.audit.findings import Audit, finite
from fulcrum.errors import DataError
from fulcrum.federation.structure import SILO
from fulcrum.planning.plan import Plan
from fulcrum.planning.verdict import LEVELS, verdict
from fulcrum.simulation.results import Results
from fulcrum.views.numbers import shown_epsilon, with_error

FORMAT = "fulcrum.dossier/1"

UNANSWERED = "Unanswered."


class Answers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What Fulcrum cannot know, as people answered it; an empty text is no answer.

    Attributes:
        format: `fulcrum.dossier/1`.
        name: Of the model or study.
        curators: Who publishes it.
        curator_type: What they are: Company, Government, Nonprofit, Academic.
        intended_use: What the model is for.
        description: What it is.
        region: Whom the data describes, or whose law applies.
        sector: Healthcare, Technology, Education, Government, Finance.
        publication_date: When it is first published, YYYY-MM-DD.
        registry_authors: Who filled this in.
        sources: Where more is to be read.
        why_this_epsilon: Why the epsilon is acceptable, above all where it is large.
        harms_beyond_the_unit: Whom it may harm although a silo's dataset is protected.
        other_releases: What else was released from the same data, and whether it is protected.
        preprocessing: What was done to the data before training, and how settings were chosen.
        utility: How good the model is for its use, with its uncertainty.
        bias: Systemic, human and statistical bias in data and model.
        trust: Who the subjects, curators and consumers are, and why whom they trust is to be trusted.
        security: How records and keys are kept, at rest and in use.
        access_control: Who may reach them.
        minimisation: What is not collected, and what is deleted when.
    """

    format: str = FORMAT
    name: str = ""
    curators: list[str] = []
    curator_type: str = ""
    intended_use: str = ""
    description: str = ""
    region: str = ""
    sector: str = ""
    publication_date: str = ""
    registry_authors: list[str] = []
    sources: str = ""
    why_this_epsilon: str = ""
    harms_beyond_the_unit: str = ""
    other_releases: str = ""
    preprocessing: str = ""
    utility: str = ""
    bias: str = ""
    trust: str = ""
    security: str = ""
    access_control: str = ""
    minimisation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question, and what is known.

    Attributes:
        number: From 1.
        text: What is asked.
        answer: What the plan and people say; `UNANSWERED` where nobody says anything.
        unanswered: Whether people were asked and did not say.
    """

    number: int
    text: str
    answer: str
    unanswered: bool

    @property
    def answered_in_part(self) -> bool:
        """Whether the plan says something and people did not."""
        return self.unanswered and self.answer != UNANSWERED


def read_answers(path: str | Path) -> Answers:
    """Reads a TOML file of answers."""
    try:
        found = msgspec.convert(tomllib.loads(Path(path).read_text(encoding="utf-8")), Answers)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise DataError(f"{path} does not hold a dossier's answers: {error}") from None
    if found.format != FORMAT:
        raise DataError(f"{path} is of format {found.format!r}, expected {FORMAT}")
    return found


def answers_template() -> str:
    """Returns a TOML file that asks for everything and answers nothing."""
    told = _attribute_lines(Answers.__doc__ or "")
    lines = [f'format = "{FORMAT}"', "", "# What Fulcrum cannot know. An empty text is shown as unanswered."]
    for name in Answers.__struct_fields__[1:]:
        empty = "[]" if isinstance(getattr(Answers(), name), list) else '""'
        lines += ["", f"# {told.get(name, name)}", f"{name} = {empty}"]
    return "\n".join(lines) + "\n"


def _attribute_lines(doc: str) -> dict[str, str]:
    """Returns what a docstring says of each attribute."""
    pairs = [line.strip().split(": ", 1) for line in doc.partition("Attributes:")[2].splitlines() if ": " in line]
    return dict(pairs)


def questions_of(
    plan: Plan, answers: Answers, *, audit: Audit | None = None, results: Results | None = None
) -> list[Question]:
    """Returns the questions, answered from a plan, what people said, an audit and a run, where there are these."""
    inner = plan.federation.innermost.name
    above, inside = shown_epsilon(plan.worst_epsilon()), shown_epsilon(finite(plan.worst_epsilon(SILO)))
    deployed = plan.purpose == "deployment"
    asked: list[tuple[str, str, str, bool]] = [
        (
            "What is epsilon, and why is it acceptable?",
            f"At most {above} for any silo against {plan.whom(inner)}, and {inside} against {plan.whom(SILO)}.",
            answers.why_this_epsilon,
            verdict(plan).level != LEVELS[0],  # a small one speaks for itself
        ),
        (
            "Which variant of differential privacy, with which parameter of its own?",
            f"Approximate differential privacy, from Gaussian noise of known width, by the accountant "
            f"{plan.accountant}. Noise multipliers stand in the plan, silo by silo.",
            "",
            False,
        ),
        ("What is delta, and that of any conversion?", _delta(plan), "", False),
        (
            "What is the unit, who are neighbours, what bounds contributions, and when does the budget start anew?",
            "A silo's whole dataset; neighbours replace it, at the declared size. A silo contributes one update a "
            f"round, clipped to norm {plan.clip_norm:g}, so that its sensitivity is twice that. The budget never "
            "starts anew: what was spent stays in the silo's ledger and in every later plan. Here "
            f"{plan.rounds:,} rounds.",
            "",
            False,
        ),
        ("Which harms does the unit miss?", "", answers.harms_beyond_the_unit, True),
        (
            "How is the loss composed, and what is the total budget?",
            f"Gaussian releases add up in mu squared over {plan.rounds:,} rounds"
            + (", and with all that silos released before." if plan.follows else ", from nothing released before."),
            "",
            False,
        ),
        ("What else was released from the same data without differential privacy?", "", answers.other_releases, True),
        (
            "What is the mechanism, and what is the evidence that it is right?",
            f"The Gaussian mechanism{', on a lattice' if deployed else ''}, drawn by {_who(plan)}. Its proof is in the "
            f"documentation, its figures are recomputed by fulcrum verify. {_audited(audit)}",
            "",
            False,
        ),
        (
            "How useful is the result, and how uncertain is that?",
            _utility(plan, results),
            answers.utility,
            results is None or results.run is None or results.run.accuracy is None,
        ),
        ("What systemic, human and statistical bias is there?", _voice(plan), answers.bias, True),
        (
            "Who may ask what, and how often?",
            "Nobody asks queries: each silo releases one update a round, and the model of every round is known to all "
            "parties.",
            "",
            False,
        ),
        (
            "What is the threat model: subjects, curator and consumers, and whether trust holds?",
            " ".join(f"{line[0].upper()}{line[1:]}." for line in plan.assumptions),
            answers.trust,
            True,
        ),
        (
            "Are floating point, timing and errors channels?",
            (
                "Releases are integers on a lattice; noise comes from a cryptographic source. What cannot be trained "
                "is released as zero plus noise, so that errors do not show. How long training takes is not covered."
                if deployed
                else "This is a plan for research: its noise is seeded floating point, and protects nobody."
            ),
            "",
            False,
        ),
        ("How are records secured, at rest and in use?", "", answers.security, True),
        ("Who has access?", "", answers.access_control, True),
        ("What is not collected, and what is deleted?", "", answers.minimisation, True),
    ]
    return [
        Question(
            number=number,
            text=text,
            answer=" ".join(part for part in (said, given) if part) or UNANSWERED,
            unanswered=needed and not given,
        )
        for number, (text, said, given, needed) in enumerate(asked, 1)
    ]


def _delta(plan: Plan) -> str:
    reserve = plan.target.reserve
    more = f" Of it {reserve:.2g} is kept back for what lattice noise costs." if reserve else ""
    return f"{plan.delta:g}, over all rounds of this plan.{more}"


def _who(plan: Plan) -> str:
    return "every silo for itself" if plan.injection == "silo" else "trusted aggregators"


def _audited(audit: Audit | None) -> str:
    if audit is None:
        return "It was not audited."
    return (
        f"An audit of {len(audit.findings)} observers, {audit.trials:,} replays each, found it {audit.verdict}, at "
        f"{audit.confidence:.0%} confidence for all together; that nothing was broken proves nothing."
    )


def _utility(plan: Plan, results: Results | None) -> str:
    noise = f"The noise variance in the model is {plan.model_noise:.4g} C² a coordinate and round."
    run = None if results is None else results.run
    if run is None or run.accuracy is None:
        return noise
    seeds = f"{len(run.seeds)} seed{'' if len(run.seeds) == 1 else 's'}"
    return f"{noise} Accuracy on {run.task} is {with_error(run.accuracy, run.accuracy_se)} over {seeds}."


def _voice(plan: Plan) -> str:
    inner = plan.federation.innermost.name
    shares = plan.node_influence(inner)
    return (
        f"Influence on the model by {inner} goes from {shares.min():.2%} to {shares.max():.2%}; those with least of it "
        "may be served least."
    )
