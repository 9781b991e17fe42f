"""The earlier place of the job of a plan, whose class `PlanSubmission` was `PlanRecipe`."""

from fulcrum.moved_names import names_in

_JOB = "engines.nvflare.plan_job"

__getattr__ = names_in(
    __name__,
    {"ADMIN": _JOB, "LoopbackEnv": _JOB, "PlanJob": _JOB, "PlanRecipe": f"{_JOB}:PlanSubmission"},
    until="0.3",
)
