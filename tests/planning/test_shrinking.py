import msgspec
import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.plan.plan_file import to_json
from fulcrum.errors import ParameterError, PlanError

PROMISE = {"rounds": 3, "epsilon": 1.0, "parameters": 34}


@pytest.mark.parametrize(
    ("options", "shrink"),
    [
        ({}, False),
        ({"recipe": "joint"}, "even-heads"),
        ({"recipe": "joint", "shrink": True}, True),
        ({"recipe": "joint", "shrink": False}, False),
        ({"recipe": "joint", "server": "sum"}, False),
        ({"server": "random-effects"}, False),
        ({"server": "random-effects", "shrink": "heads"}, "heads"),
    ],
)
def test_the_recipe_shrinks_heads_and_a_plan_says_otherwise_where_it_was_asked_to(options, shrink, tmp_path):
    made = fulcrum.plan("isic-paper", **PROMISE, **options)
    fulcrum.save_plan(made, tmp_path / "plan.json")
    for plan in (made, fulcrum.read_plan(tmp_path / "plan.json")):
        assert plan.shrink is shrink or (isinstance(shrink, str) and plan.shrink == shrink)
        assert getattr(plan.server_rule, "shrinks", False) == shrink


@pytest.mark.parametrize("shrink", ["rows", "", 1, 0.5, None])
def test_what_no_server_knows_to_shrink_is_refused(shrink, tmp_path):
    if shrink is not None:
        with pytest.raises(ParameterError, check=coded("plan.shrink-invalid", shrink=shrink)):
            fulcrum.plan("isic-paper", **PROMISE, recipe="joint", shrink=shrink)
    content = fulcrum.plan("isic-paper", **PROMISE, recipe="joint").content()
    settings = msgspec.structs.replace(content.settings, shrink=shrink)
    (tmp_path / "plan.json").write_bytes(to_json(msgspec.structs.replace(content, settings=settings)))
    with pytest.raises(PlanError) as caught:
        fulcrum.read_plan(tmp_path / "plan.json")
    assert "\n" not in str(caught.value)
