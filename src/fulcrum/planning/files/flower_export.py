"""A plan as a Flower app that runs: what `flwr run` is given, and nothing of any site in it.

>>> from fulcrum.planning.planner import plan
>>> sorted(app_files(plan("severe", rounds=10, epsilon=1.0, aggregation="masked")))
['fulcrum_app/__init__.py', 'fulcrum_app/client_app.py', 'fulcrum_app/server_app.py', 'pyproject.toml']

Sites hold plan, keys, policies and ledgers, as `fulcrum deploy flower` writes them: no setting of the app changes what
a silo releases.
"""

from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import PlanError
from fulcrum.planning.plan import Plan

_PROJECT = """\
# A Flower app that runs plan {digest}.
# Sites hold plan, keys, policies and ledgers: no setting here changes what a silo releases.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fulcrum-app"
version = "1.0.0"
description = "Rounds of a Fulcrum plan, with masked sums"
license = "Apache-2.0"
dependencies = ["flwr==1.41.0", "fulcrum-dp[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fulcrum"

[tool.flwr.app.components]
serverapp = "fulcrum_app.server_app:app"
clientapp = "fulcrum_app.client_app:app"

[tool.flwr.app.config]
fulcrum-plan-digest = "{digest}"
num-server-rounds = {rounds}
"""

_CLIENT = '''\
"""What every silo runs. Its SuperNode is started with --node-config 'fulcrum-site="/path/of/site"'.

For an app of your own: ClientApp(mods=[fulcrum_mod]), with fulcrum_mod from fulcrum.engines.flower.client_mod.
"""

from fulcrum.engines.flower.app import client_app as app

__all__ = ["app"]
'''

_SERVER = '''\
"""What the server runs. Its SuperLink is started with the environment variable FULCRUM_SITE=/path/of/site.

For an app of your own: FulcrumStrategy(), from fulcrum.engines.flower.strategy, in the place of FedAvg.
"""

from fulcrum.engines.flower.app import server_app as app

__all__ = ["app"]
'''


def app_files(plan: Plan | VerifiedPlan) -> dict[str, str]:
    """Returns the files of the app, by their paths in its folder; a plan whose sums are not masked has none."""
    if plan.aggregation != "masked":
        raise PlanError("on Flower no aggregator stands in a region: sums are masked. Plan with --aggregation masked")
    return {
        "pyproject.toml": _PROJECT.format(digest=plan.digest, rounds=plan.rounds),
        "fulcrum_app/__init__.py": '"""The rounds of a Fulcrum plan, on Flower."""\n',
        "fulcrum_app/client_app.py": _CLIENT,
        "fulcrum_app/server_app.py": _SERVER,
    }
