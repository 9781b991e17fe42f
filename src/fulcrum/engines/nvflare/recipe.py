"""The earlier place of the job of a plan, which programs of earlier versions import."""

from fulcrum.moved_names import names_in

_JOB = "engines.nvflare.plan_job"

__getattr__ = names_in(__name__, {"LoopbackEnv": _JOB, "PlanRecipe": f"{_JOB}:PlanSubmission"}, until="0.3")
