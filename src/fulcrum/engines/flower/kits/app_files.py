"""The Flower app of a plan, as files for `flwr run`. The app holds nothing of any site.

>>> from fulcrum.planning.planner import plan
>>> sorted(app_files(plan("severe", rounds=10, epsilon=1.0, aggregation="masked")))
['fulcrum_app/__init__.py', 'fulcrum_app/client_app.py', 'fulcrum_app/server_app.py', 'pyproject.toml']

Sites hold plan, keys, policies and ledgers, as `fulcrum deploy flower` writes them: no setting of the app changes the
release of a silo.
"""

from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.engines.kit_templates import kit_text
from fulcrum.errors import PlanError
from fulcrum.planning.plan import Plan

_CLIENT = "fulcrum_app/client_app.py"
_FILES = (
    "pyproject.toml",
    "fulcrum_app/__init__.py",
    _CLIENT,
    "fulcrum_app/server_app.py",
)


def app_files(plan: Plan | VerifiedPlan, *, virtual: bool = False) -> dict[str, str]:
    """Returns the files of the app, by path in the app's folder; a plan without masked sums raises `PlanError`.

    Args:
        plan: The plan to run.
        virtual: True for virtual nodes of a simulation, which train in the node's own process.
    """
    if not plan.is_masked:
        raise PlanError("flower.plan-not-masked")
    files = {name: kit_text(f"flower/app/{name}.jinja", digest=plan.digest, rounds=plan.rounds) for name in _FILES}
    if virtual:
        files[_CLIENT] = files[_CLIENT].replace("flower.client_app import", "flower.virtual_app import")
    return files
