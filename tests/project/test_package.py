import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from lowest_versions import CORE as CORE_REQUIREMENTS
from lowest_versions import TESTS, pins

import fulcrum
from fulcrum import errors

PUBLIC = set(fulcrum.__all__)
SOURCE = Path(fulcrum.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if path.stem not in ("__init__", "__main__")
)
LAYERS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
PARTS = sorted(
    (".".join(path.parent.relative_to(SOURCE).parts) for path in SOURCE.glob("*/*/**/__init__.py")),
    key=lambda part: (-part.count("."), part),
)
"""The folders within layers, the innermost first."""

BASE = "base"
"""The modules that stand in no folder."""

OPTIONAL = {
    "pyarrow",
    "yaml",
    "sklearn",
    "onnxruntime",
    "PIL",
    "tokenizers",
    "cryptography",
    "numba",
    "tensorboard",
    "mlflow",
    "torch",
    "vl_convert",
    "starlette",
    "uvicorn",
    "httpx",
    "anyio",
    "nvflare",
    "flwr",
    "ray",
}
LOADED_BY_ENGINES = {  # or by a script that runs recipes or apps of theirs
    *(f"engines.nvflare.{name}" for name in ("flare_silo", "flare_region", "flare_server", "plan_job")),
    *(f"engines.nvflare.flare_masked_{name}" for name in ("silo", "region", "server")),
    *(f"engines.nvflare.{name}" for name in ("site_launcher", "server_files", "site_jobs.admission")),
    *(
        f"engines.flower.{name}"
        for name in ("client_app", "server_app", "flower_records", "strategy", "client_mod", "site_mod", "virtual_app")
    ),
}
CORE = {"numpy", "scipy", "msgspec", "cyclopts", "rich", "jinja2", "narwhals"}


def source_of(module: str) -> str:
    return (SOURCE / f"{module.replace('.', '/')}.py").read_text()


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(source_of(module))


def imports(tree: ast.AST) -> set[str]:
    """Returns every module that the code imports, at once, later, or for type checkers alone.

    An import under `TYPE_CHECKING` counts: a reader needs the other module to follow the types.
    """
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def layer_of(module: str) -> str:
    first = module.split(".")[0]
    return first if first in LAYERS else BASE


def part_of(module: str) -> str:
    """The folder within a layer that a module stands in, or the layer itself."""
    return next((part for part in PARTS if module.startswith(f"{part}.")), layer_of(module))


def declared(folder: str) -> set[str]:
    """What a layer, or a folder within one, says it imports from, in the last line of its docstring."""
    doc = ast.get_docstring(tree_of(f"{folder}.__init__")) or ""
    found = re.search(r"^Imports from: ([\w.,\s]+)\.$", doc, re.MULTILINE)
    assert found, f"{folder}/__init__.py must say what it imports from"
    return {name.strip() for name in found[1].split(",")}


def named(tree: ast.AST) -> set[str]:
    """Every module that stands in a text as `fulcrum.module:name`, to be imported when it is called for."""
    texts = {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return {found[1] for text in texts if (found := re.fullmatch(r"(fulcrum[\w.]+):\w+", text))}


@cache
def used_by(module: str) -> set[str]:
    """The modules of this package that a module imports, at once or later."""
    tree = tree_of(module)
    names = {name for name in imports(tree) | named(tree) if name.startswith("fulcrum")}
    return {name.removeprefix("fulcrum.") for name in names}


def circle(edges: dict[str, set[str]]) -> list[str]:
    """Those that cannot be put in an order in which each comes after all that it needs."""
    left = dict(edges)
    while free := [name for name, needs in left.items() if not needs & set(left)]:
        for name in free:
            del left[name]
    return sorted(left)


def test_every_layer_says_its_job_and_stands_on_layers_below_it():
    below = {layer: declared(layer) for layer in LAYERS}
    assert set().union(*below.values()) <= {BASE, *LAYERS}
    assert circle(below) == []
    assert circle({"a": {"b"}, "b": {"a"}, "c": set()}) == ["a", "b"]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_from_its_own_layer_and_those_it_stands_on(module):
    layer = layer_of(module)
    allowed = {BASE} if layer == BASE else {layer, *declared(layer)}
    assert {layer_of(used) for used in used_by(module)} <= allowed


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_from_every_layer_that_it_names(layer):
    used = {layer_of(name) for module in MODULES if layer_of(module) == layer for name in used_by(module)}
    assert declared(layer) <= used | {BASE}


@pytest.mark.parametrize("part", PARTS)
def test_a_folder_within_a_layer_imports_from_the_layers_and_folders_that_it_names(part):
    layer = layer_of(part)
    used = {name for module in MODULES if part_of(module) == part for name in used_by(module)}
    found = {part_of(name) if layer_of(name) == layer else layer_of(name) for name in used}
    assert declared(part) | {BASE} == (found - {part}) | {BASE}


def test_the_folders_of_a_layer_stand_on_each_other_in_one_order():
    used = {part: set() for part in map(part_of, MODULES)}
    for module in MODULES:
        used[part_of(module)] |= {part_of(name) for name in used_by(module)} - {part_of(module)}
    assert circle(used) == []


def test_no_two_modules_import_each_other_however_long_the_way():
    edges = {module: used_by(module) & set(MODULES) for module in MODULES}
    assert circle(edges) == []


def test_an_import_counts_wherever_it_stands():
    code = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fulcrum.a import b\ndef f():\n    import c.d\n"
    )
    assert imports(ast.parse(code)) == {"typing", "fulcrum.a", "c.d"}


def test_every_module_is_used():
    used = set().union(*(used_by(module) for module in MODULES), used_by("__init__"), used_by("cli.__main__"))
    for_any_engine = {
        "aggregation.masked_round",
        "core.silo.masked_release",
    }  # public: whoever carries their messages calls them
    run_by_kits = {"engines.flower.gate", "engines.flower.kits.node_registration"}
    run_as_a_process = {"core.training.worker_output", "core.training.worker_process"}
    for_earlier_programs = {
        "earlier_keywords",
        "moved_names",
    }  # loaded by name, so that a silo's process does not import it
    for_notebooks = {  # drawn at the first display of a result, which is data
        "views.notebook.data_frames",
        "views.notebook.result_html",
    }
    loaded_by_name = {
        *for_notebooks,
        *LOADED_BY_ENGINES,
        "engines.built_in_training",
        *for_any_engine,
        *run_by_kits,
        *run_as_a_process,
        *for_earlier_programs,
    }
    assert set(MODULES) - used == loaded_by_name - used


def test_only_engines_themselves_load_the_modules_that_import_them():
    for module in sorted(set(MODULES) - LOADED_BY_ENGINES):
        used = {name.removeprefix("fulcrum.") for name in imports(tree_of(module))}
        assert not used & LOADED_BY_ENGINES, module


def test_only_core_packages_are_imported_at_the_top():
    for module in sorted(set(MODULES) - LOADED_BY_ENGINES):
        tree = tree_of(module)
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                assert not {name.split(".")[0] for name in names} & OPTIONAL, module


def test_every_core_dependency_has_a_lowest_version_and_no_ceiling():
    assert set(pins(CORE_REQUIREMENTS)) == CORE
    assert pins(["numpy>=2.0"]) == {"numpy": "numpy==2.0"}
    assert {"pytest", "polars"} <= set(pins(TESTS))
    for wrong in ("numpy", "numpy>=2.0,<3", "numpy==2.0", "numpy~=2.0"):
        with pytest.raises(SystemExit, match="lowest version that works"):
            pins([wrong])


def test_the_public_names_are_sorted_and_documented():
    assert fulcrum.__all__ == sorted(
        fulcrum.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name)
    )
    for name in fulcrum.__all__:
        value = getattr(fulcrum, name)
        if callable(value):
            assert value.__doc__, name


def test_type_checkers_see_the_public_names_where_they_are():
    tree = tree_of("__init__")
    seen = {
        alias.asname: (node.module or "").removeprefix("fulcrum.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fulcrum.")
        for alias in node.names
        if alias.asname == alias.name
    }
    assert seen == fulcrum._MODULES
    assert set(fulcrum.__all__) < set(dir(fulcrum))
    with pytest.raises(AttributeError, match="module 'fulcrum' has no attribute 'plam'"):
        fulcrum.plam  # noqa: B018


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"numpy", "scipy", "rich", "jinja2", "cyclopts", "msgspec"}
    script = f"import sys, fulcrum; assert fulcrum.__version__; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_public_functions_return_is_public_too():
    """A type of ours in an annotation of a public function, method or field is public or in the reference."""
    documented = "\n".join(path.read_text() for path in (SOURCE.parents[1] / "docs" / "api").glob("*.rst"))
    for name in fulcrum.__all__:
        value = getattr(fulcrum, name)
        members = [value] if inspect.isfunction(value) else []
        if inspect.isclass(value):
            members = [member for key, member in inspect.getmembers(value) if not key.startswith("_")]
        for member in members:
            function = member.fget if isinstance(member, property) else getattr(member, "func", member)
            if not inspect.isfunction(function):
                continue
            for returned in re.findall(r"\b[A-Z]\w+", str(inspect.signature(function).return_annotation)):
                kind = getattr(sys.modules[function.__module__], returned, None)
                if getattr(kind, "__module__", "").startswith("fulcrum."):
                    assert returned in fulcrum.__all__ or f".{returned}\n" in documented, (name, returned)


def test_every_error_is_public():
    errors = {name for name, value in vars(fulcrum.errors).items() if inspect.isclass(value)}
    assert {name for name in errors if issubclass(getattr(fulcrum.errors, name), Exception)} <= set(fulcrum.__all__)


def test_every_error_is_a_fulcrum_error_and_a_builtin_one():
    names = [name for name in fulcrum.__all__ if name.endswith("Error") and name != "FulcrumError"]
    for name in names:
        error = getattr(fulcrum, name)
        assert issubclass(error, fulcrum.FulcrumError)
        assert issubclass(error, (ValueError, ImportError, RuntimeError))


def drawn_errors() -> dict[str, tuple[str, str | None]]:
    """The tree of errors as the module draws it: for each error what it stands under, and what it is besides."""
    found: dict[str, tuple[str, str | None]] = {}
    above = ["FulcrumError"]
    for line in (errors.__doc__ or "").splitlines():
        drawn = re.match(r"    ([│ ]*)[├└]── (\w+) ", line)
        if drawn:
            depth = len(drawn[1]) // 4 + 1
            beside = re.search(r"\(also an? (\w+)\)", line)
            found[drawn[2]] = (above[depth - 1], beside[1] if beside else None)
            above[depth:] = [drawn[2]]
    return found


def test_the_tree_of_errors_is_drawn_as_it_is():
    real = {}
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, Exception) and error is not fulcrum.FulcrumError:
            first, *others = (base.__name__ for base in error.__bases__)
            real[error.__name__] = (first, *(others or [None]))
    assert drawn_errors() == real
    assert {name for name in fulcrum.__all__ if name.endswith("Error")} == {"FulcrumError", *real}


def named_classes(hint: object) -> set[type]:
    """The classes of this package that an annotation names, however deep."""
    inside = set().union(*(named_classes(part) for part in get_args(hint)))
    own = isinstance(hint, type) and hint.__module__.startswith("fulcrum.")
    return inside | ({hint} if own else set())


def public_callables() -> Iterator[tuple[str, Callable[..., object]]]:
    """Every public function, and every public method and property of a public class."""
    for name in fulcrum.__all__:
        value = getattr(fulcrum, name)
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            for own, member in vars(value).items():
                member = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
                if not own.startswith("_") and inspect.isfunction(member):
                    yield f"{name}.{own}", member


def test_all_that_public_functions_return_and_say_they_raise_is_public():
    returned, raised = set(), set()
    for name, function in public_callables():
        hint = get_type_hints(function, localns=vars(fulcrum)).get("return")
        returned |= {f"{name} returns {kind.__name__}" for kind in named_classes(hint) if kind.__name__ not in PUBLIC}
        doc = inspect.getdoc(function) or ""
        said = doc.partition("Raises:")[2].partition("\n\n")[0]
        raised |= {f"{name} raises {error}" for error in re.findall(r"\w+Error\b", said) if error not in PUBLIC}
    assert (returned, raised) == (set(), set())


def test_no_module_validates_with_assert():
    for module in MODULES:
        tree = tree_of(module)
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)], module
