"""The quickstart of examples/, plain and private: what differs, and that both learn."""

import difflib
import importlib
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_quickstart"
PAGE = Path(__file__).parents[2] / "docs" / "flower.md"
NODES = 50


def test_the_page_shows_every_line_that_differs():
    shown = PAGE.read_text()
    for name in ("client_app", "server_app", "task", "__init__"):
        plain, private = (
            (EXAMPLE / which / "quickstart" / f"{name}.py").read_text().splitlines() for which in ("plain", "private")
        )
        changed = [line for line in difflib.ndiff(plain, private) if line[0] in "+-"]
        assert len(changed) == {"client_app": 3, "server_app": 4}.get(name, 0)
        for line in changed:
            assert f"{line[0]}{line[2:]}\n" in shown


@pytest.fixture
def quickstart(monkeypatch, request):
    """The apps of one of the two."""
    pytest.importorskip("flwr", reason="needs the extra flower")
    monkeypatch.syspath_prepend(EXAMPLE / request.param)
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        monkeypatch.delitem(sys.modules, name)
    return [importlib.import_module(f"quickstart.{name}_app").app for name in ("client", "server")]


class Nodes:
    """What a grid carries messages to: the virtual nodes, in this process."""

    def __init__(self, app):
        self.app, self.silos, self.replies = app, range(NODES), []

    def answer(self, message):
        from flwr.app import Context, RecordDict

        node = message.metadata.dst_node_id
        config = {"partition-id": node - 1, "num-partitions": NODES}
        context = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
        self.replies.append(self.app(message, context))
        return self.replies[-1]


@pytest.mark.torch
@pytest.mark.parametrize("quickstart", ["plain", "private"], indirect=True)
def test_both_learn_and_the_private_one_sends_answers_alone(tmp_path, monkeypatch, capsys, quickstart, request):
    from flower_world import LocalGrid
    from flwr.app import Context, RecordDict

    from fulcrum.engines.flower.kits.flower_sites import write_sites
    from fulcrum.engines.site_folders import Deployment

    plan = runpy.run_path(str(EXAMPLE / "simulate.py"))["private_plan"]()
    assert plan.epsilon_target == {"federation": 8.0}
    write_sites(Deployment(plan=plan, train="quickstart", runs_here=True), tmp_path)
    monkeypatch.setenv("FULCRUM_SITES", str(tmp_path))
    monkeypatch.setenv("FULCRUM_SITE", str(tmp_path / "server"))
    client, server = quickstart
    nodes = Nodes(client)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    server(LocalGrid(nodes), context)
    accuracy = float(capsys.readouterr().out.split("accuracy")[-1].split()[0])
    assert accuracy > 0.6  # of ten digits
    private = request.node.callspec.params["quickstart"] == "private"
    assert all((list(reply.content) == ["fulcrum"]) == private for reply in nodes.replies)
