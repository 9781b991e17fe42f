"""Every setting of a plan is declared once, and reaches Python, the command line, the page and the plan file."""

import inspect
from dataclasses import fields

import msgspec
import pytest

import fulcrum
from fulcrum.cli.shared_options.target_options import TargetOptions
from fulcrum.core.plan.plan_file import PlanSettings, Spectrum
from fulcrum.planning.inputs.settings import Settings, declared_settings, taking_keywords
from fulcrum.planning.planner import variant
from fulcrum.views.page.page_settings import PageSettings

BECOMES = {
    "recipe": {"weights", "clip_norm", "server", "shrink"},
    "floor": {"floor", "coupling"},
    "public": {"spectrum"},
    "embedding": {"spectrum"},
}
PUBLIC = Spectrum(variances=[3.0, 0.5], origin="public", source="public.npz")
OUTSIDE_THE_SETTINGS = {"purpose", "keys"}  # fields of the plan file itself
OF_THE_PAGE = {"rounds": 10, "epsilon": 1.0}  # what its sliders say first


def test_python_has_a_keyword_for_every_setting_with_its_default():
    parameters = inspect.signature(fulcrum.plan).parameters
    assert list(parameters) == ["federation", *declared_settings()]
    for name, setting in declared_settings().items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert setting.is_required == (parameters[name].default is inspect.Parameter.empty)
        assert setting.is_required or parameters[name].default == setting.default
        assert f"\n    {name}: " in fulcrum.plan.__doc__


def test_the_command_line_has_an_option_for_every_setting_with_its_default():
    options = {field.name: field.default for field in fields(TargetOptions)}
    assert set(options) == set(declared_settings()) - OUTSIDE_THE_SETTINGS | {"epsilon_inside"}
    for name, setting in declared_settings().items():
        assert name in OUTSIDE_THE_SETTINGS or options[name] == setting.default
        assert setting.help.endswith((".", "..."))


def test_the_page_has_settings_of_these_names_and_their_defaults_but_for_its_first_question():
    for field in msgspec.structs.fields(PageSettings):
        if field.name != "epsilon_inside":
            assert field.default == OF_THE_PAGE.get(field.name, declared_settings()[field.name].default)


def test_a_plan_file_has_what_every_setting_became():
    kept = {field.name for field in msgspec.structs.fields(PlanSettings)}
    for name in set(declared_settings()) - OUTSIDE_THE_SETTINGS:
        assert BECOMES.get(name, {name}) <= kept


def test_a_setting_that_is_not_declared_is_refused_by_name():
    with pytest.raises(TypeError, match="noise"):
        fulcrum.plan("severe", rounds=2, epsilon=1.0, noise=3.0)
    with pytest.raises(TypeError, match="rounds"):
        fulcrum.plan("severe", epsilon=1.0)


def test_a_function_of_settings_gets_the_keywords_as_one_value():
    @taking_keywords(Settings)
    def echo(federation, settings):
        """Returns both.

        Args:
            federation: Any.
            settings: By keywords:
        """
        return federation, settings

    assert echo("here", rounds=3, colluders=1) == ("here", Settings(rounds=3, colluders=1))


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon": 1.0},
        {"epsilon": {"region": 1.0, "aggregator": 6.0}, "colluders": 1, "least_influence": 0.5},
        {"epsilon": 2.0, "recipe": "joint", "parameters": 66},
        {"epsilon": 2.0, "parameters": 66, "purpose": "deployment"},
        {"epsilon": 2.0, "parameters": 6, "recipe": "joint", "public": PUBLIC, "purpose": "deployment"},
        {"epsilon": 1.0, "allocation": "misallocated", "seed": 3, "clip_norm": 2.0, "weights": 0.5},
        {"epsilon": 1.0, "injection": "aggregator"},
    ],
    ids=str,
)
def test_a_variant_without_changes_is_the_plan(settings):
    plan = fulcrum.plan("isic-paper", rounds=5, **settings)
    assert variant(plan).digest == plan.digest


def test_a_variant_keeps_weights_that_were_given_by_silo():
    silos = fulcrum.plan("isic-paper", rounds=5, epsilon=1.0).federation.silo_names.tolist()
    plan = fulcrum.plan("isic-paper", rounds=5, epsilon=1.0, weights={name: 1.0 + len(name) for name in silos})
    assert variant(plan, allocation="uniform").weights == pytest.approx(plan.weights, rel=1e-15)


def test_an_unknown_keyword_is_refused_with_the_setting_that_is_meant():
    with pytest.raises(TypeError, match=r"^plan\(\) has no setting 'eps'\. Did you mean 'epsilon'\?$"):
        fulcrum.plan("severe", rounds=2, eps=1.0)
    with pytest.raises(TypeError, match=r"^plan\(\) has no setting 'xyzzy'\.$"):
        fulcrum.plan("severe", rounds=2, epsilon=1.0, xyzzy=1)
