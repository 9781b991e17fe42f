"""The questions of NIST SP 800-226 to a deployment, with their answers or marked as unanswered.

>>> from fulcrum.planning.planner import plan
>>> questions = questions_of(plan("consortium", rounds=10, epsilon=1.0), Answers())
>>> len(questions), [question.number for question in questions if question.unanswered]
(16, [1, 5, 7, 9, 10, 12, 14, 15, 16])

A plan answers some of the questions. A small TOML file asks people for the remaining answers; a missing answer is shown
as unanswered. `SOURCE` names the text behind the questions: the draft, not the final publication.
"""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fulcrum.audit.evidence.findings import VIOLATED, Audit
from fulcrum.core.topology import SILO
from fulcrum.errors import DataError
from fulcrum.parsing import toml_of
from fulcrum.planning.content.plan_document import guarantee_of
from fulcrum.planning.plan import Plan
from fulcrum.rounding import display_epsilon
from fulcrum.server.run_results import Results
from fulcrum.views.terminal.audit_tables import VERDICT_WORDS, confidence_words
from fulcrum.words.numbers import figure, with_error
from fulcrum.words.person_words import conventions_words, data_of_one, sensitivity_words, whole_silo_sentence
from fulcrum.words.recipe_words import proviso
from fulcrum.words.verdict import LEVELS, verdict

FORMAT = "fulcrum.dossier/1"

UNANSWERED = "Unanswered."

SOURCE = (
    "NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees, March 2025, "
    "doi 10.6028/NIST.SP.800-226. The questions follow its initial public draft of December 2023; they were not "
    "compared with the final text."
)
"""The publication, and its draft, which the questions follow."""


class Answers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """People's answers to questions that a plan cannot answer; an empty text is no answer.

    Attributes:
        format: `fulcrum.dossier/1`.
        name: Name of the model or study.
        curators: Publishers of the model.
        curator_type: Kind of publishers: Company, Government, Nonprofit, Academic.
        intended_use: Purpose of the model.
        description: Description of the model.
        region: People that the data describes, or the applicable law.
        sector: Healthcare, Technology, Education, Government, Finance.
        publication_date: Date of the first publication, YYYY-MM-DD.
        registry_authors: Authors of these answers.
        sources: Further reading.
        why_this_epsilon: Reason why the epsilon is acceptable, above all a large epsilon.
        harms_beyond_the_unit: People whom the model may harm although every unit of privacy is protected.
        other_releases: Further releases from the same data, and their protection.
        preprocessing: Preparation of the data before training, and the choice of settings.
        utility: Quality of the model for its use, with its uncertainty.
        bias: Systemic, human and statistical bias in data and model.
        trust: Subjects, curators and consumers, the parties that they trust, and the reasons for that trust.
        security: Protection of records and keys, at rest and in use.
        access_control: People with access to records and keys.
        minimisation: Data that is not collected, and data that is deleted, with dates.
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
    """A question and its answer.

    Attributes:
        number: The number of the question, from 1.
        text: The question.
        answer: The answer of the plan and of people; `UNANSWERED` without both.
        unanswered: True where people's answer is missing.
        asks_for: The field of `Answers` with people's answer; empty for a question to the plan alone.
    """

    number: int
    text: str
    answer: str
    unanswered: bool
    asks_for: str = ""

    @property
    def answered_in_part(self) -> bool:
        """Returns True for a question with the plan's answer and without people's answer."""
        return self.unanswered and self.answer != UNANSWERED


def read_answers(path: str | Path) -> Answers:
    """Returns the answers of a TOML file."""
    try:
        answers = msgspec.convert(toml_of(Path(path).read_bytes()), Answers)
    except OSError as error:
        raise DataError("file.unreadable", file=path, reason=error.strerror) from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise DataError("answers.file-wrong", file=path, reason=str(error)) from None
    if answers.format != FORMAT:
        raise DataError("file.format-unknown", file=path, format=answers.format, expected=FORMAT)
    return answers


def answers_template() -> str:
    """Returns a TOML file with every question and empty answers."""
    comments = _attribute_lines(Answers.__doc__ or "")
    lines = [f'format = "{FORMAT}"', "", "# Answers that a plan cannot give. An empty text is shown as unanswered."]
    for name in Answers.__struct_fields__[1:]:
        empty = "[]" if isinstance(getattr(Answers(), name), list) else '""'
        lines += ["", f"# {comments.get(name, name)}", f"{name} = {empty}"]
    return "\n".join(lines) + "\n"


def _attribute_lines(doc: str) -> dict[str, str]:
    """Returns the lines of a docstring on attributes, by name."""
    pairs = [line.strip().split(": ", 1) for line in doc.partition("Attributes:")[2].splitlines() if ": " in line]
    return dict(pairs)


def questions_of(
    plan: Plan, answers: Answers, *, audit: Audit | None = None, results: Results | None = None
) -> list[Question]:
    """Returns the questions with answers from a plan, people's answers, an audit and a run."""
    deployed, guarantee = plan.is_deployment, guarantee_of(plan)
    questions: list[tuple[str, str, str, bool]] = [
        (
            "What is epsilon, and why is it acceptable?",
            guarantee.promise if deployed else f"{guarantee.promise} {_PROTECTS_NOBODY}",
            "why_this_epsilon",
            verdict(plan).level != LEVELS[0],  # a small epsilon needs no reason
        ),
        ("Which variant of differential privacy, with which parameter of its own?", _variant(plan), "", False),
        ("What is delta, and that of any conversion?", _delta(plan), "", False),
        (
            "What is the unit, who are neighbours, what bounds contributions, and when does the budget start anew?",
            f"The unit is a {plan.unit.protected_data}. Neighbouring federations {guarantee.adjacency}. "
            f"{_contribution(plan)} {_BUDGET[deployed]}",
            "",
            False,
        ),
        ("Which harms does the unit miss?", whole_silo_sentence(plan), "harms_beyond_the_unit", True),
        ("How is the loss composed, and what is the total budget?", _composition(plan), "", False),
        ("What else was released from the same data without differential privacy?", "", "other_releases", True),
        (
            "What is the mechanism, and what is the evidence that it is right?",
            f"The Gaussian mechanism{', on a lattice' if deployed else ''}, drawn by {_who(plan)}. Its proof is in the "
            f"documentation of Fulcrum; fulcrum verify recomputes the plan's figures. {_audit_words(audit)}",
            "",
            False,
        ),
        (
            "How useful is the result, and how uncertain is that?",
            _utility(plan, results),
            "utility",
            results is None or results.run is None or results.run.accuracy is None,
        ),
        ("What systemic, human and statistical bias is there?", _influence_words(plan), "bias", True),
        (
            "Who may ask what, and how often?",
            "Nobody asks queries: each silo releases one update a round, and the model of every round is known to all "
            "parties.",
            "",
            False,
        ),
        (
            "What is the threat model: subjects, curator and consumers, and whether trust holds?",
            " ".join(f"{line[0].upper()}{line[1:]}." for line in guarantee.assumptions),
            "trust",
            True,
        ),
        ("Are floating point, timing and errors channels?", _channels(plan), "", False),
        ("How are records secured, at rest and in use?", "", "security", True),
        ("Who has access?", "", "access_control", True),
        ("What is not collected, and what is deleted?", "", "minimisation", True),
    ]
    result = []
    for number, (text, of_plan, field, needed) in enumerate(questions, 1):
        of_people = getattr(answers, field) if field else ""
        answer = " ".join(part for part in (of_plan, of_people) if part) or UNANSWERED
        missing = needed and not of_people
        result.append(Question(number=number, text=text, answer=answer, unanswered=missing, asks_for=field))
    return result


_PROTECTS_NOBODY = "The plan only aims at that: it is for research, its noise is seeded, and it protects nobody."

_BUDGET = {
    True: "The budget never starts anew: each silo's ledger records the spending under every plan, and refuses a "
    "release beyond the plan's total.",
    False: "A plan for research has no ledger: nothing stops a silo from releasing more.",
}
"""The answer on the budget; True for a deployment plan."""

_CHANNELS = {
    True: "Releases are integers on a lattice, and their noise comes from a cryptographic source. An update that is "
    "not finite, or that training fails to make, is released as zero plus noise, so that no error reveals the failure. "
    "Timing is not covered: training, clipping and sampling do not take constant time, and the time that a silo takes "
    "to answer is visible.",
    False: "This is a plan for research: its noise is seeded floating point, and protects nobody.",
}


def _channels(plan: Plan) -> str:
    words = _CHANNELS[plan.purpose == "deployment"]
    if not plan.unit.is_within_silo or plan.purpose != "deployment":
        return words
    return f"{words} A gradient that is not finite counts as zero for that {plan.unit.noun} alone."


def _contribution(plan: Plan) -> str:
    """Returns the bound on contributions: of the updates of a silo, or of the gradients of a person."""
    unit, norm = plan.unit, f"clipped to norm {plan.clip_norm:g}, in {plan.rounds:,} rounds"
    if not unit.is_within_silo:
        return (
            f"A silo contributes one update a round, {norm}: another dataset moves the update by at most twice that "
            "norm."
        )
    where = "one silo" if unit.silos_per_person == 1 else f"each of up to {unit.silos_per_person} silos"
    return (
        f"The gradient of {data_of_one(unit)} enters the sum of {where} once a round, {norm}: with C that norm, "
        f"{sensitivity_words(plan)}. {conventions_words(plan)} Ledgers are kept by silo and do not follow a "
        f"{unit.noun} from one silo to another."
    )


def _variant(plan: Plan) -> str:
    """Returns the variant, and mu for both observers. For lattice noise `renyi` proves concentrated DP alone."""
    variant = {
        "exact": "mu, of Gaussian differential privacy",
        "renyi": "mu, where mu squared over 2 is the rho of zero-concentrated differential privacy",
    }[plan.accountant]
    its = "the silo's" if plan.unit.is_within_silo else "its"
    above, inside = (_shift_text(plan.worst_shift(tier)) for tier in (None, SILO))
    place = "outside the federation" if plan.one_group else f"above {its} {plan.federation.innermost.name}"
    return (
        f"Approximate differential privacy, from Gaussian noise. The parameter of its own is {variant}: over all "
        f"rounds{_and_before(plan)} at most {above} for any {plan.unit.noun} against the observer {place}, and "
        f"{inside} against the observer inside it. Epsilon follows from mu and delta by the accountant "
        f"{plan.accountant}."
    )


def _shift_text(shift: float) -> str:
    return figure(display_epsilon(shift)) if math.isfinite(shift) else "without bound"


def _and_before(plan: Plan) -> str:
    return " of this plan, and all that silos released before," if plan.continues_previous_plan else " of this plan"


def _delta(plan: Plan) -> str:
    reserve = plan.target.reserve
    at = "Epsilon is computed from mu at this delta, and nothing else is converted."
    if reserve:
        at = (
            f"Of this delta {reserve:.2g} is reserved for the cost of lattice noise; epsilon is computed from mu at "
            "the rest, and nothing else is converted."
        )
    return f"{plan.delta:g}, over all rounds{_and_before(plan).rstrip(',')}. {at}"


def _composition(plan: Plan) -> str:
    before = (
        "Earlier releases of the silos are counted in."
        if plan.continues_previous_plan
        else "The plan counts no earlier releases."
    )
    return (
        f"Gaussian releases add up in mu squared, over the {plan.rounds:,} rounds of this plan. {before} The "
        "stated epsilons are the total."
    )


def _who(plan: Plan) -> str:
    return "every silo for itself" if plan.silos_draw_noise else "trusted aggregators"


def _audit_words(audit: Audit | None) -> str:
    if audit is None:
        return "The plan was not audited."
    result = f"{audit.verdict}: {VERDICT_WORDS[audit.verdict]}"
    notes = (
        audit.notes[1:] if audit.verdict == VIOLATED else audit.notes
    )  # the first note says that no audit proves privacy
    return " ".join(
        [
            f"An audit with Fulcrum {audit.version} played {len(audit.findings)} observers by up to {audit.trials:,} "
            f"replays each; at a confidence of {confidence_words(audit)} its verdict is {result}.",
            *notes,
        ]
    )


def _utility(plan: Plan, results: Results | None) -> str:
    holds = proviso(plan, plan.federation.innermost.name)
    noise = f"The noise variance in the model is {plan.model_noise:.4g} C² a coordinate and round{holds}."
    run = None if results is None else results.run
    if run is None or run.accuracy is None:
        return noise
    seeds = f"{len(run.seeds)} seed{'' if len(run.seeds) == 1 else 's'}"
    subject = "Accuracy" if run.metric == "accuracy" else f"The {run.metric}"
    return f"{noise} {subject} on {run.task} is {with_error(run.accuracy, run.accuracy_se)} over {seeds}."


def _influence_words(plan: Plan) -> str:
    inner = plan.federation.innermost.name
    shares = plan.node_influence(inner)
    return (
        f"The influence of a {inner} on the model ranges from {shares.min():.2%} to {shares.max():.2%}. The model may "
        f"serve {inner}s with the least influence worst."
    )
