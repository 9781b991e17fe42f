"""The software of a kit: the wheel of Fulcrum, and a list of versions and hashes of all further packages.

No index of packages has to know Fulcrum: the wheel holds the code that made the kit. The list names no address, so an
operator installs from any index or folder, and `pip` refuses a package with another hash. `make locks` writes the
lists of versions.
"""

import base64
import hashlib
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path

import fulcrum
from fulcrum.errors import DataError

INSTALL_FOLDER = "install"
"""The folder in a kit for the wheel and the list."""

LIST = "requirements.txt"

_EXTRAS = {"nvflare": "nvflare,secure,fast", "flower": "flower,fast"}
_OLDEST = (1980, 1, 1, 0, 0, 0)  # the same moment in every wheel, so that the same code has the same hash
_METADATA = ("METADATA", "WHEEL", "entry_points.txt")
_RESOURCES = {"error_messages": (".toml",), "engines/locks": (".txt",), "views/templates": (".html", ".css", ".js")}
_RESOURCES |= {"engines/templates": (".md", ".sh", ".jinja"), "words/languages": (".toml",)}
"""By folder of the package: the endings of files that are no modules. Kits go to other organisations: keys, plans and
tables of a developer, left in the folder of the package, must not go with them."""


def write_installation(kit: Path, engine: str, *, wheel: Path | None = None) -> Path:
    """Writes the folder of a kit from which `pip` installs Fulcrum for an engine, and returns the path of the wheel.

    Args:
        kit: The folder of the kit.
        engine: The name of the engine, whose list of versions is written.
        wheel: A wheel that `write_wheel` made, to copy. By default the wheel is made here.
    """
    folder = kit / INSTALL_FOLDER
    folder.mkdir()
    if wheel is None:
        own = write_wheel(folder)
    else:
        own = folder / wheel.name
        own.write_bytes(wheel.read_bytes())
    digest = hashlib.sha256(own.read_bytes()).hexdigest()
    first = f"./{INSTALL_FOLDER}/{own.name}[{_EXTRAS[engine]}] \\\n    --hash=sha256:{digest}\n"
    (folder / LIST).write_text(first + versions_of(engine), encoding="utf-8")
    return own


def versions_of(engine: str) -> str:
    """Returns the versions and hashes of the packages that an engine needs, without Fulcrum, as lines for `pip`."""
    return files("fulcrum.engines").joinpath("locks", f"{engine}.txt").read_text(encoding="utf-8")


def write_wheel(folder: Path) -> Path:
    """Writes the wheel of this Fulcrum into a folder, and returns the path of the wheel.

    The wheel holds the modules and resources of the running package, so that a kit carries the code that made the kit.
    A checkout needs no build: the build backend would come from an index.

    Raises:
        DataError: Fulcrum runs from a source tree that was never installed.
    """
    try:
        installed = distribution("fulcrum-dp")
    except PackageNotFoundError:
        raise DataError("kit.wheel-unmade") from None
    path = folder / f"fulcrum_dp-{installed.version}-py3-none-any.whl"
    information, record = f"fulcrum_dp-{installed.version}.dist-info", []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in (*_package_files(), *_information(installed, information)):
            _write_entry(wheel, name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")
        own = f"{information}/RECORD"
        _write_entry(wheel, own, "".join([*record, f"{own},,\n"]).encode())
    return path


def _write_entry(wheel: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _OLDEST)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    wheel.writestr(entry, content)


def _package() -> Path:
    """Returns the folder of the running package."""
    return Path(str(fulcrum.__file__)).parent


def _package_files() -> Iterator[tuple[str, bytes]]:
    """Yields name and content of every module and every resource of the running package, and of no other file."""
    package = _package()
    for path in sorted(package.rglob("*")):
        if path.is_file() and _is_of_the_package(path.relative_to(package)):
            yield path.relative_to(package.parent).as_posix(), path.read_bytes()


def _is_of_the_package(path: Path) -> bool:
    """Returns True for the relative path of a module or a resource; hidden files and folders are neither."""
    if any(part.startswith(".") or part == "__pycache__" for part in path.parts):
        return False
    if path.suffix == ".py" or path.as_posix() == "py.typed":
        return True
    return any(path.is_relative_to(folder) and path.suffix in endings for folder, endings in _RESOURCES.items())


def _information(installed: Distribution, folder: str) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of the files that describe the package to `pip`: metadata, commands and licence."""
    for name in _METADATA:
        yield f"{folder}/{name}", (installed.read_text(name) or "").encode()
    licence = installed.read_text("licenses/LICENSE")
    if licence is None:  # an editable installation has no copy of the licence; the checkout has
        beside = _package().parents[1] / "LICENSE"
        licence = beside.read_text(encoding="utf-8") if beside.is_file() else None
    if licence is not None:
        yield f"{folder}/licenses/LICENSE", licence.encode()
