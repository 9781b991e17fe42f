"""A plan as an entry of the Deployments Registry (opendp/deployments-registry-data), in YAML.

The fields are those of entries in September 2026.

>>> from fulcrum.planning.planner import plan
>>> entry = registry_entry(plan("consortium", rounds=10, epsilon=1.0), Answers(name="Readmissions"))
>>> entry["url_slug"], entry["deployment"]["privacy_loss"]["privacy_parameters"]
('readmissions', {'epsilon': 1.0, 'delta': 1e-05})
>>> check_shape(entry)

The registry has a single epsilon for a single observer. The entry's epsilon is the worst epsilon above a region, or
outside the federation if all silos are masked as a single group; the details have both epsilons.
"""

import json
import re
from typing import Any

from fulcrum.audit.evidence.findings import Audit
from fulcrum.core.plan.figures import unmet_tiers
from fulcrum.errors import DataError, listing
from fulcrum.planning.content.plan_document import guarantee_of
from fulcrum.planning.plan import Plan
from fulcrum.rounding import rounded_up
from fulcrum.version import package_version
from fulcrum.views.report.dossier import UNANSWERED, Answers, Question, questions_of
from fulcrum.words.person_words import size_word, whole_silo_sentence
from fulcrum.words.recipe_words import recipe_words

SHAPE: dict[str, Any] = {
    "url_slug": str,
    "status": ("Draft", "Pending", "Changes Required", "Approved"),
    "tier": (1, 2, 3),
    "deployment": {
        "basic": {
            "name": str,
            "data_curators": [{"data_curator_name": str, "data_curator_type": str}],
            "intended_use": str,
            "data_product_type": ("Summary statistics", "Machine learning model", "Dataset", "Synthetic data"),
            "data_product_region": str,
            "description": str,
            "publication_date": str,
            "data_product_sector": str,
        },
        "dp_variant": {
            "variant_name": ("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
            "data_domain": str,
            "unprotected_quantities": str,
        },
        "privacy_loss": {
            "privacy_unit": str,
            "privacy_unit_details": str,
            "privacy_parameters": {"epsilon": float, "delta": float},
            "privacy_parameters_details": str,
        },
        "deployment_model": {
            "model_name": ("Local", "Central", "Shuffle", "Federated"),
            "model_name_details": str,
            "actors": str,
            "release_type": ("One release", "Many releases"),
            "release_type_details": str,
            "data_source_type": ("Static", "Dynamic"),
            "data_source_type_details": str,
            "access_type": ("Interactive", "Non-interactive"),
            "access_type_details": str,
        },
        "accounting": {"post_processing": str, "composition": str},
        "implementation": {"preprocessing_and_hyperparameter_tuning": str, "mechanisms": str, "justification": str},
        "administrative": {"sources": str, "notes": str, "registry_authors": [str]},
    },
}
"""The shape of an entry: types, allowed words, and the content of objects and lists."""


def registry_entry(plan: Plan, answers: Answers, *, audit: Audit | None = None) -> dict[str, Any]:
    """Returns a plan as a draft entry; missing answers are marked as unanswered."""
    answered = {question.number: _full_answer(question) for question in questions_of(plan, answers, audit=audit)}
    name = answers.name or plan.federation.name
    basics = {
        field: getattr(answers, field) or UNANSWERED for field in ("intended_use", "description", "region", "sector")
    }
    entry = {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "deployment",
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": name,
                "data_curators": [
                    {"data_curator_name": curator, "data_curator_type": answers.curator_type or UNANSWERED}
                    for curator in answers.curators or [UNANSWERED]
                ],
                "intended_use": basics["intended_use"],
                "data_product_type": "Machine learning model",
                "data_product_region": basics["region"],
                "description": basics["description"],
                "publication_date": answers.publication_date or UNANSWERED,
                "data_product_sector": basics["sector"],
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": _data_domain(plan),
                "unprotected_quantities": f"Of every silo its {_public(plan)}, and in which rounds it took part. "
                f"{_on_whole_silos(plan)}Other releases: {answers.other_releases or UNANSWERED}",
            },
            "privacy_loss": {
                "privacy_unit": f"{plan.unit.name.capitalize()}-level: a {plan.unit.protected_data}",
                "privacy_unit_details": answered[4],
                "privacy_parameters": {"epsilon": rounded_up(plan.worst_epsilon()), "delta": plan.delta},
                "privacy_parameters_details": f"{answered[1]} The epsilon of this entry is the first of these, against "
                f"{guarantee_of(plan).describe_observer(plan.federation.innermost.name)}. {answered[2]} Delta: "
                f"{answered[3]}",
            },
            "deployment_model": {
                "model_name": "Federated",
                "model_name_details": _model(plan),
                "actors": answered[12],
                "release_type": "Many releases",
                "release_type_details": f"Each silo releases once a round, over {plan.rounds:,} rounds. {answered[6]}",
                "data_source_type": "Static",
                "data_source_type_details": f"Each silo trains on one dataset in all rounds; its guarantee covers "
                f"{'that dataset as a whole' if not plan.unit.is_within_silo else f'each {plan.unit.protected_data}'}.",
                "access_type": "Non-interactive",
                "access_type_details": answered[11],
            },
            "accounting": {
                "post_processing": f"{recipe_words(plan)[-1]} The server reads released sums and no records.",
                "composition": answered[6],
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": answers.preprocessing or UNANSWERED,
                "mechanisms": f"{answered[8]} Library: Fulcrum; this entry was written by version {package_version()}. "
                f"{answered[13]} Security: {answered[14]} Access: {answered[15]}",
                "justification": answers.why_this_epsilon or UNANSWERED,
            },
            "administrative": {
                "sources": answers.sources or UNANSWERED,
                "notes": f"Plan for {plan.purpose}, digest {plan.digest}.",
                "registry_authors": list(answers.registry_authors or [UNANSWERED]),
            },
        },
    }
    check_shape(entry)
    return entry


def _full_answer(question: Question) -> str:
    """Returns an answer, and the name of a missing part."""
    if not question.answered_in_part:
        return question.answer
    return f"{question.answer} {question.asks_for.replace('_', ' ').capitalize()}: {UNANSWERED}"


def _public(plan: Plan) -> str:
    """Returns the public facts on every silo."""
    federation = plan.federation
    facts = ["name", federation.innermost.name, "weight"]
    if plan.unit.is_within_silo:
        facts += [f"declared number of {size_word(plan.unit)}"]
    else:
        facts += ["declared size"] if federation.sizes_known else []
    facts += ["declared preference"] if federation.preferences is not None else []
    return listing(facts)


def _on_whole_silos(plan: Plan) -> str:
    """Returns the sentence on silos as a whole with a blank behind; empty where silos are protected."""
    sentence = whole_silo_sentence(plan)
    return f"{sentence} " if sentence else ""


def _data_domain(plan: Plan) -> str:
    """Returns a sentence on the datasets that the guarantee is about."""
    silos, unit = f"{len(plan.federation):,} silos", plan.unit
    if unit.is_within_silo:
        many = size_word(unit)
        where = "one silo" if unit.silos_per_person == 1 else f"{unit.silos_per_person} silos"
        return (
            f"The records of {many} in {silos}, no {unit.noun} in more than {where}, with a declared number of {many} "
            "each."
        )
    size = "each of its declared size" if plan.federation.sizes_known else "each of any size"
    return f"The datasets of {silos}, taken to be disjoint, {size}."


def _model(plan: Plan) -> str:
    """Returns a sentence on the parties that add up releases, and on their view."""
    inner, regions = plan.federation.innermost.name, len(plan.federation.innermost.nodes)
    if not plan.is_masked:
        do = "see single updates" if plan.silos_draw_noise else "see single updates without noise, add the noise"
        return f"Silos report to {regions:,} aggregators, one for each {inner}, which {do} and forward sums alone."
    if plan.one_group:
        return "Silos send masked releases, of which the server gets the sum of all and nothing finer."
    if unmet_tiers(plan):
        return (
            f"Silos send masked releases, sealed to {regions:,} aggregators, one for each {inner}, of which each gets "
            f"the sum of its {inner} and nothing finer, and forwards the sum, sealed."
        )
    return (
        f"Silos send masked releases, of which the server gets the sum of each of {regions:,} {inner}s, nothing finer."
    )


def check_shape(entry: Any, shape: Any = SHAPE, where: str = "entry") -> None:
    """Checks that an entry has exactly the fields of `SHAPE`, with their types.

    Raises:
        DataError: A field is missing, unknown or of a wrong type.
    """
    if isinstance(shape, dict):
        if not isinstance(entry, dict) or entry.keys() != shape.keys():
            fields = sorted(entry) if isinstance(entry, dict) else entry
            raise DataError("registry.fields-wrong", place=where, expected=sorted(shape), fields=fields)
        for key, inside in shape.items():
            check_shape(entry[key], inside, f"{where}.{key}")
    elif isinstance(shape, list):
        if not isinstance(entry, list) or not entry:
            raise DataError("registry.list-empty", place=where, entry=entry)
        for number, part in enumerate(entry):
            check_shape(part, shape[0], f"{where}[{number}]")
    elif isinstance(shape, tuple):
        if entry not in shape:
            raise DataError("registry.choice-unknown", place=where, expected=list(shape), entry=entry)
    elif not isinstance(entry, shape) or isinstance(entry, bool):
        raise DataError("registry.type-wrong", place=where, expected=shape.__name__, entry=entry)


def as_yaml(value: Any, indent: int = 0) -> str:
    """Returns plain lists, mappings, texts and numbers as YAML, with texts in the quotes of JSON.

    >>> print(as_yaml({"name": "a: b", "authors": ["x"], "epsilon": 1.0}))
    name: "a: b"
    authors:
      - "x"
    epsilon: 1.0
    """
    pad = "  " * indent
    if isinstance(value, dict):
        lines = []
        for key, inside in value.items():
            nested = isinstance(inside, (dict, list))
            lines.append(f"{pad}{key}:" + (f"\n{as_yaml(inside, indent + 1)}" if nested else f" {as_yaml(inside)}"))
        return "\n".join(lines)
    if isinstance(value, list):
        rows = []
        for part in value:
            text = as_yaml(part, indent + 1)
            rows.append(f"{pad}- {text.strip() if isinstance(part, dict) else text}")
        return "\n".join(rows)
    if isinstance(value, float) and "e" in repr(value) and "." not in repr(value):
        mantissa, exponent = repr(value).split("e")
        return f"{mantissa}.0e{exponent}"  # YAML 1.1 takes 1e-05 for a text
    return json.dumps(value, ensure_ascii=False)
