"""Reads settings of differential privacy from other tools: a Flower app, a job of NVIDIA FLARE, an Opacus script.

>>> source = "mod = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=8.0, delta=1e-5)"
>>> [(entry.mechanism, entry.values["epsilon"]) for entry in settings_in_python(source, "client_app.py")]
[('LocalDpMod', 8.0)]

Python is parsed and never imported or run. A number is a number in the text, a name that is bound once to such a
number, or a value of a Flower app's `run_config` that the pyproject.toml states. Every other value is unknown, and
is named.
"""

import ast
import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fulcrum.errors import DataError, listing

_MOST_BYTES = 1 << 20
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "LocalDpMod": ("clipping_norm", "sensitivity", "epsilon", "delta"),
    "DifferentialPrivacyServerSideFixedClipping": (
        "strategy",
        "noise_multiplier",
        "clipping_norm",
        "num_sampled_clients",
    ),
    "DifferentialPrivacyClientSideFixedClipping": (
        "strategy",
        "noise_multiplier",
        "clipping_norm",
        "num_sampled_clients",
    ),
    "DifferentialPrivacyServerSideAdaptiveClipping": ("strategy", "noise_multiplier", "num_sampled_clients"),
    "DifferentialPrivacyClientSideAdaptiveClipping": ("strategy", "noise_multiplier", "num_sampled_clients"),
    "make_private": (),
    "make_private_with_epsilon": (),
}
"""The calls that set differential privacy, with their arguments by position."""

_WANTED = {
    "LocalDpMod": ("clipping_norm", "sensitivity", "epsilon", "delta"),
    "make_private": ("noise_multiplier", "max_grad_norm"),
    "make_private_with_epsilon": ("target_epsilon", "target_delta", "epochs", "max_grad_norm"),
}
_WANTED_OF_STRATEGIES = ("noise_multiplier", "clipping_norm", "num_sampled_clients")
_FILTERS = {"SVTPrivacy": {"fraction": 0.1, "epsilon": 0.1, "noise_var": 0.1, "gamma": 1e-5}}
_NOISELESS = ("PercentilePrivacy", "ExcludeVars", "DXOBlocker", "StatisticsPrivacyFilter")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSetting:
    """A mechanism of differential privacy in the files of another tool.

    Attributes:
        mechanism: The name of the mechanism in the tool.
        place: The file and line.
        values: The numbers by name.
        unknown: The names of values that the text does not state as numbers.
        configured: The names of values that the app's pyproject.toml states, and `flwr run --run-config` may change.
    """

    mechanism: str
    place: str
    values: dict[str, float] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    configured: tuple[str, ...] = ()


def find_settings(source: Path) -> list[FoundSetting]:
    """Returns the settings in a Python file, a JSON file, or all such files of a folder.

    Raises:
        DataError: The source does not exist, cannot be parsed, or holds no setting that is known here.
    """
    if not source.exists():
        raise DataError("promise.source-missing", source=source)
    files = sorted(source.rglob("*")) if source.is_dir() else [source]
    entries = [entry for path in files if path.is_file() and not path.is_symlink() for entry in _in_file(path, source)]
    if not entries and (unread := unread_files(source)):
        raise DataError("promise.files-unread", source=source, files=listing(unread))
    if not entries:
        raise DataError("promise.settings-missing", source=source)
    return entries


def rounds_in(source: Path) -> int | None:
    """Returns the number of rounds that a Flower app's pyproject.toml or a job of NVIDIA FLARE states; None if none."""
    stated: set[float] = set()
    for path in sorted(source.rglob("*")) if source.is_dir() else []:
        if path.name == "pyproject.toml":
            stated |= {number for name, number in _app_config(path).items() if name == "num-server-rounds"}
        elif path.suffix == ".json" and (content := _json(path)) is not None:
            stated |= {entry["num_rounds"] for entry in _objects(content) if isinstance(entry.get("num_rounds"), int)}
    (number,) = stated if len(stated) == 1 else (None,)
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None


def settings_in_python(text: str, place: str, config: Mapping[str, float] = MappingProxyType({})) -> list[FoundSetting]:
    """Returns the settings in Python source, parsed and never run.

    Args:
        text: The source.
        place: The name of the file, for messages.
        config: The numbers of the app's `run_config`, by name.

    Raises:
        DataError: The text is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError("promise.source-syntax", source=place, reason=type(error).__name__) from None
    fixed, numbers_by_name = _constants(tree, {}), _constants(tree, config)
    entries = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _name_of_call(node)) in _ARGUMENTS:
            positions = zip(_ARGUMENTS[name], node.args, strict=False)
            arguments = dict(positions) | {word.arg: word.value for word in node.keywords if word.arg is not None}
            numbers = {word: _number(value, numbers_by_name, config) for word, value in arguments.items()}
            values = {word: number for word, number in numbers.items() if number is not None}
            wanted = _WANTED.get(name, _WANTED_OF_STRATEGIES)
            entries.append(
                FoundSetting(
                    mechanism=name,
                    place=f"{place} line {node.lineno}",
                    values=values,
                    unknown=tuple(word for word in wanted if word not in values),
                    configured=tuple(word for word in values if _number(arguments[word], fixed, {}) is None),
                )
            )
    return entries


def settings_in_job(content: Any, place: str) -> list[FoundSetting]:
    """Returns the filters in the configuration of a job of NVIDIA FLARE, and unknown filters by name too."""
    entries = []
    filters = {id(filter_) for entry in _objects(content) for filter_ in _entries_of(entry.get("filters"))}
    for entry in _objects(content):
        name = str(entry.get("path") or entry.get("name") or entry.get("class_path") or "").rpartition(".")[2]
        stated = entry.get("args")
        arguments: dict[str, Any] = stated if isinstance(stated, dict) else {}
        if name in _FILTERS:
            numbers = {word: arguments.get(word, usual) for word, usual in _FILTERS[name].items()}
            values = {word: float(value) for word, value in numbers.items() if _is_number(value)}
            unknown = tuple(word for word in numbers if word not in values)
            entries.append(FoundSetting(mechanism=name, place=place, values=values, unknown=unknown))
        elif name in _NOISELESS or "Privacy" in name or id(entry) in filters:
            numbers = {word: float(value) for word, value in arguments.items() if _is_number(value)}
            entries.append(FoundSetting(mechanism=name or "a filter without a name", place=place, values=numbers))
    return entries


def unread_files(source: Path) -> list[str]:
    """Returns the files of a folder that may set a filter and are not read: job configurations in another format.

    NVIDIA FLARE takes a configuration as JSON, HOCON (.conf) or YAML; JSON alone is read here.
    """
    files = sorted(source.rglob("config_*")) if source.is_dir() else []
    return [path.relative_to(source).as_posix() for path in files if path.suffix != ".json" or _json(path) is None]


def _in_file(path: Path, source: Path) -> list[FoundSetting]:
    place = path.relative_to(source).as_posix() if source.is_dir() else path.name
    if path.suffix == ".py" and path.stat().st_size <= _MOST_BYTES:
        text = path.read_text(encoding="utf-8", errors="replace")
        return settings_in_python(text, place, _config_of(path, source))
    if path.suffix == ".json":
        content = _json(path)
        if content is None and not source.is_dir():
            raise DataError("promise.json-malformed", source=place)
        return [] if content is None else settings_in_job(content, place)
    return []


def _json(path: Path) -> Any:
    """Returns the content of a JSON file of moderate size; None for any other file."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size <= _MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None


def _entries_of(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []


def _objects(content: Any) -> Iterator[dict[str, Any]]:
    """Yields every object of a JSON content, without recursion."""
    left = [content]
    while left:
        entry = left.pop(0)
        if isinstance(entry, dict):
            yield entry
            left += entry.values()
        elif isinstance(entry, list):
            left += entry


def _config_of(path: Path, source: Path) -> dict[str, float]:
    """Returns the numbers of the `run_config` of a file's app: of the nearest pyproject.toml inside the source."""
    if not source.is_dir():
        return {}
    for folder in path.parents:
        if (folder / "pyproject.toml").exists():
            return _app_config(folder / "pyproject.toml")
        if folder == source:
            break
    return {}


def _app_config(pyproject: Path) -> dict[str, float]:
    """Returns the numbers of [tool.flwr.app.config] by their dotted names; empty for a file without that table."""
    try:
        left = [("", tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"])]
    except (KeyError, TypeError, ValueError, OSError, RecursionError):
        return {}
    numbers = {}
    while left:
        name, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{name}.{key}" if name else key, inner) for key, inner in value.items()]
        elif _is_number(value):
            numbers[name] = value
    return numbers


def _constants(tree: ast.Module, config: Mapping[str, float]) -> dict[str, float]:
    """Returns the numbers of names that a module binds once, and to a number; a name with two bindings is unknown.

    Every binding counts, in any scope: a parameter or an import may hide the number at the place of use.
    """
    bindings = Counter(name for node in ast.walk(tree) for name in _bound_names(node))
    if "*" in bindings:
        return {}
    numbers: dict[str, float] = {}
    for node in ast.walk(tree):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if len(targets) == 1 and isinstance(targets[0], ast.Name) and bindings[targets[0].id] == 1:
            value = _number(node.value, {}, config) if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if value is not None:
                numbers[targets[0].id] = value
    return numbers


def _bound_names(node: ast.AST) -> list[str]:
    """Returns the names that a node of a syntax tree binds, without its children."""
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    if isinstance(node, ast.MatchMapping):
        return [node.rest] if node.rest else []
    name = (
        node.arg if isinstance(node, ast.arg) else getattr(node, "name", None)
    )  # functions, classes, handlers, patterns
    return [name] if isinstance(name, str) else []


def _name_of_call(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _number(node: ast.AST | None, constants: Mapping[str, float], config: Mapping[str, float]) -> float | None:
    """Returns a number in the text, of a name or of `run_config`, also inside float(); None for other expressions."""
    if isinstance(node, ast.Constant) and _is_number(node.value):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        is_config = getattr(node.value, "attr", getattr(node.value, "id", "")) == "run_config"
        value = config.get(str(node.slice.value)) if is_config else None
        return None if value is None else float(value)
    if isinstance(node, ast.Call) and _name_of_call(node) == "float" and len(node.args) == 1:
        return _number(node.args[0], constants, config)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
