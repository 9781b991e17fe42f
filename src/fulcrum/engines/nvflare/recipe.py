"""The module that the recipe of a job was in: programs that were written before import it from here."""

from fulcrum.moved_names import names_in

__getattr__ = names_in(
    __name__, dict.fromkeys(("LoopbackEnv", "PlanRecipe"), "engines.nvflare.job_recipe"), until="0.3"
)
