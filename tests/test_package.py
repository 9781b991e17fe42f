import ast
from pathlib import Path

import pytest
from floors import CORE as CORE_REQUIREMENTS
from floors import TESTS, pins

import fulcrum

SOURCE = Path(fulcrum.__file__).parent
ORDER = [
    "errors",
    "arrays",
    "csv_text",
    "fingerprint",
    "files",
    "federation",
    "profiles",
    "silo_table",
    "tree_files",
    "readers",
    "rosters",
    "editing",
    "exposure",
    "accounting",
    "prior",
    "leakage",
    "allocation",
    "lattice",
    "guarantee",
    "targets",
    "advice",
    "planfile",
    "plans",
    "planning",
    "comparison",
    "verification",
    "exports",
    "keystream",
    "discrete_gaussian",
    "noise",
    "ledger_entries",
    "log_mark",
    "database_connection",
    "database_file",
    "ledger_file",
    "ledger",
    "mechanism",
    "policy",
    "layouts",
    "terms",
    "releasing",
    "signing",
    "sealing",
    "answers",
    "region_file",
    "regional",
    "coordination",
    "replanning",
    "training.tasks",
    "training.embedding",
    "training.partition",
    "training.models",
    "training.engine",
    "training.reference",
    "training.runs",
    "training.trials",
    "training.results",
    "engines.wire",
    "engines.learning",
    "engines.head",
    "engines.sites",
    "engines.silo",
    "engines.nvflare.common",
    "engines.nvflare.admission",
    "engines.nvflare.silo",
    "engines.nvflare.region",
    "engines.nvflare.server",
    "engines.nvflare.processes",
    "engines.nvflare.operators",
    "engines.nvflare.kits",
    "engines.nvflare.console",
    "engines.nvflare.loopback",
    "display",
    "drawing",
    "region_charts",
    "charts",
    "assets",
    "reports",
    "whatif",
    "web_server",
    "serving",
    "options",
    "pictures",
    "cli_engines",
    "cli_silo",
    "cli_report",
    "cli_serve",
    "cli",
]
OPTIONAL = {
    "pyarrow",
    "yaml",
    "sklearn",
    "onnxruntime",
    "PIL",
    "tokenizers",
    "cryptography",
    "numba",
    "vl_convert",
    "starlette",
    "uvicorn",
    "anyio",
    "nvflare",
}
LOADED_BY_NVFLARE = {f"engines.nvflare.{name}" for name in ("silo", "region", "server", "admission", "processes")}
CORE = {"numpy", "scipy", "msgspec", "cyclopts", "rich", "jinja2", "narwhals"}


def source_of(module: str) -> str:
    return (SOURCE / f"{module.replace('.', '/')}.py").read_text()


def imports(tree: ast.AST) -> set[str]:
    """Every module imported when the code runs; imports for type checkers alone do not count."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        found |= imports(node)
    return found


def test_the_list_names_every_module():
    paths = [path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py") if path.stem != "__init__"]
    assert sorted(ORDER) == sorted(".".join(path.parts) for path in paths)


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_only_from_those_above_it(module):
    used = {
        name.removeprefix("fulcrum.") for name in imports(ast.parse(source_of(module))) if name.startswith("fulcrum")
    }
    assert used <= set(ORDER[: ORDER.index(module)])


def test_only_nvflare_itself_loads_the_modules_that_import_it():
    for module in sorted(set(ORDER) - LOADED_BY_NVFLARE):
        used = {name.removeprefix("fulcrum.") for name in imports(ast.parse(source_of(module)))}
        assert not used & LOADED_BY_NVFLARE, module


def test_only_core_packages_are_imported_at_the_top():
    for module in sorted(set(ORDER) - LOADED_BY_NVFLARE):
        tree = ast.parse(source_of(module))
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                assert not {name.split(".")[0] for name in names} & OPTIONAL, module


def test_every_core_dependency_has_a_floor_and_no_ceiling():
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


def test_every_error_is_a_fulcrum_error_and_a_builtin_one():
    names = [name for name in fulcrum.__all__ if name.endswith("Error") and name != "FulcrumError"]
    for name in names:
        error = getattr(fulcrum, name)
        assert issubclass(error, fulcrum.FulcrumError)
        assert issubclass(error, (ValueError, ImportError, RuntimeError))


def test_no_module_validates_with_assert():
    for module in ORDER:
        tree = ast.parse(source_of(module))
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)], module
