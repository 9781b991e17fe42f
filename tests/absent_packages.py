"""Collects the tests below the current folder once for each package named, as if that package were not installed.

Prints a JSON object: the errors of each collection by package; by "" those with all packages in place.
`test_optional_packages.py` starts this script in a process of its own.

Why not one process for each package? Loading all modules takes ten seconds, and there are twenty packages. The tests are
collected once with all packages in place, and every import is recorded. For each package a forked child then unloads the
package, and collects only the modules that asked for the package while they were loaded, and the modules that import those.
"""

import builtins
import gc
import importlib
import importlib.util
import json
import os
import sys
from collections import defaultdict
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import metadata
from io import StringIO
from pathlib import Path

import pytest
from forking import in_child
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path.cwd()
FINDERS = tuple(sys.meta_path)


class Installed:
    """The installed packages, and the packages that require them."""

    def __init__(self):
        self.dependents = defaultdict(set)
        for distribution in metadata.distributions():
            for requirement in map(Requirement, distribution.requires or ()):
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    self.dependents[canonicalize_name(requirement.name)].add(canonicalize_name(distribution.name))
        self.distributions, self.modules = defaultdict(set), defaultdict(set)
        for module, names in metadata.packages_distributions().items():
            for name in map(canonicalize_name, names):
                self.distributions[module].add(name)
                self.modules[name].add(module)

    def absent_with(self, package):
        """Returns the modules that no machine without this package has: its own, and those of packages that require it."""
        absent, waiting = set(), list(self.distributions[package])
        while waiting:
            name = waiting.pop()
            if name not in absent:
                absent.add(name)
                waiting += self.dependents[name]
        return {package}.union(*(self.modules[name] for name in absent))


class Imports:
    """The imports that ran while the modules below the current folder were loaded."""

    def __init__(self):
        self.importers = defaultdict(set)  # the files that asked for a module, by its name

    @contextmanager
    def recorded(self):
        """Records import statements, `importlib.import_module` and `importlib.util.find_spec`."""
        places = (builtins, "__import__"), (importlib, "import_module"), (importlib.util, "find_spec")
        functions = [getattr(*place) for place in places]
        for (module, name), function in zip(places, functions, strict=True):
            setattr(module, name, partial(self.call, function))
        try:
            yield
        finally:
            for (module, name), function in zip(places, functions, strict=True):
                setattr(module, name, function)

    def call(self, function, name, *arguments, **named):
        parts = named.get("fromlist") or (arguments[2] if len(arguments) > 2 else ())
        for file in loading_files():
            for module in (name, *(f"{name}.{part}" for part in parts or ())):
                self.importers[module].add(file)
        return function(name, *arguments, **named)

    def affected_by(self, absent):
        """Returns the files that asked for one of these packages, and the files that import one of those files."""
        waiting = [file for name, files in self.importers.items() if name.partition(".")[0] in absent for file in files]
        affected = set()
        while waiting:
            file = waiting.pop()
            if file not in affected:
                affected.add(file)
                waiting += self.importers[module_name(file)]
        return affected


def loading_files():
    """Returns the file below the current folder that is being loaded, and the files whose functions it has called."""
    files, frame = [], sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if is_own(path):
            files.append(Path(path))
        if frame.f_code.co_name == "<module>":  # where a package loads its own modules, no file of ours is at fault
            return files if is_own(path) else []
        frame = frame.f_back
    return []


def is_own(path):
    return path.startswith(f"{ROOT}{os.sep}") and f"{os.sep}site-packages{os.sep}" not in path


def module_name(file):
    """Returns the name under which a file is imported."""
    parts = [] if file.stem == "__init__" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


class Collection:
    """A plugin of pytest: leaves out all files but some, and keeps the errors."""

    def __init__(self, files):
        self.files, self.errors = files, set()

    def pytest_ignore_collect(self, collection_path):
        left_out = self.files is not None and collection_path.is_file() and collection_path not in self.files
        return True if left_out else None

    def pytest_collectreport(self, report):
        if report.failed:
            self.errors.add(f"{report.nodeid}: {str(report.longrepr).splitlines()[-1]}")


def errors_of_collection(files=None):
    """Returns the errors of collecting some files, or all."""
    collection = Collection(files)
    with redirect_stdout(StringIO()):
        pytest.main(["--collect-only", "--doctest-modules", "-p", "no:cacheprovider"], plugins=[collection])
    return sorted(collection.errors)


class Without:
    """A finder of modules that does not find some packages: `import` fails, and `find_spec` returns None."""

    def __init__(self, finder, absent):
        self.finder, self.absent = finder, absent

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in self.absent else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


def errors_without(absent, files):
    """Returns the errors of collecting some files without some packages, which stay unloaded: for a forked child."""
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name.partition(".")[0] in absent or (path is not None and Path(path) in files):
            del sys.modules[name]
    sys.meta_path[:] = [Without(finder, absent) for finder in FINDERS]
    return json.dumps(errors_of_collection(files))


def main(packages):
    """Prints the errors by package."""
    imports, installed = Imports(), Installed()
    with imports.recorded():
        errors = {"": errors_of_collection()}
    gc.freeze()  # pytest collects garbage five times in each child; without the modules loaded here that is quick
    for package in packages:
        absent = installed.absent_with(package)
        files = imports.affected_by(absent)
        errors[package] = json.loads(in_child(partial(errors_without, absent, files))) if files else []
    gc.unfreeze()
    print(json.dumps(errors))


if __name__ == "__main__":
    main(sys.argv[1:])
