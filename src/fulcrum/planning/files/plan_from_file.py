"""Plans from their files: a file becomes a plan only if the content verifies as read."""

from pathlib import Path

from fulcrum.core.plan.plan_file import PlanFile
from fulcrum.core.plan.plan_reader import read_content
from fulcrum.core.plan.verified_plan import VerifiedPlan, check_verified, data_in
from fulcrum.errors import ParameterError, PlanError
from fulcrum.planning.plan import Plan
from fulcrum.rules.rule_registry import rule_named


def read_plan(path: str | Path) -> Plan:
    """Reads a plan file, verifies the content as read, and returns the plan.

    Raises:
        PlanError: The file is no plan, or a check of `fulcrum verify` fails.
    """
    return plan_of(read_content(path), source=str(path))


def read_verified_content(path: str | Path) -> PlanFile:
    """Reads a plan file, verifies the content as read, and returns the content; raises as `read_plan` does."""
    content = read_content(path)
    check_verified(content, PlanError, source=str(path))
    return content


def with_figures(plan: Plan | VerifiedPlan) -> Plan:
    """Returns the plan with its figures; a `VerifiedPlan` is made again from the verified content."""
    return plan_of(plan.content()) if isinstance(plan, VerifiedPlan) else plan


def plan_of(content: PlanFile, *, source: str = "the plan") -> Plan:
    """Returns the plan that the content of a plan file describes, after every check of `fulcrum verify`.

    Args:
        content: The content as read, with the stated figures; `Plan.content` of the result returns the same content.
        source: The name of the file in messages.

    Raises:
        PlanError: A check fails, or the plan names an unknown server rule.
    """
    check_verified(content, PlanError, source=source)
    check_server_known(content, source=source)
    plan = Plan(**data_in(content))  # type: ignore[arg-type]
    object.__setattr__(plan, "document", content)
    return plan


def is_server_known(content: PlanFile) -> bool:
    """Returns True if the server rule of a plan is built in, registered or installed."""
    try:
        check_server_known(content, source="the plan")
    except PlanError:
        return False
    return True


def check_server_known(content: PlanFile, *, source: str) -> None:
    """Raises `PlanError` if the server rule of a plan is neither built in, registered nor installed.

    A silo releases under such a plan all the same: a rule is post-processing of sums, and no epsilon rests on the rule.
    """
    try:
        rule_named(content.settings.server)
    except ParameterError as error:
        raise PlanError.at(source, error) from None
