"""Proves that a wheel holds the whole package and runs where there is nothing else; `make wheel` runs it.

It is run by the Python of the environment that the wheel, and only what it asks for, was installed into:

    python tests/wheel.py dist/fulcrum_dp-0.1.0-py3-none-any.whl
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


def package_files():
    """Every file of the package as it stands in the repository: modules, templates, the mark of its types."""
    paths = SOURCE.joinpath("fulcrum").rglob("*")
    return {
        path.relative_to(SOURCE).as_posix() for path in paths if path.is_file() and path.parent.name != "__pycache__"
    }


def lacking(names):
    """What a wheel of these names lacks: files of the package, the licence, the command."""
    told = {name.rpartition(".dist-info/")[2] for name in names if ".dist-info/" in name}
    return sorted(package_files() - set(names)) + sorted({"licenses/LICENSE", "entry_points.txt"} - told)


def run_in(folder):
    """Runs the installed package in an empty folder, as whoever has just installed it would."""
    script = Path(sys.executable).with_name("fulcrum")
    for command in (
        [sys.executable, "-c", "import fulcrum; assert fulcrum.__version__; print(fulcrum.__file__)"],
        [script, "--help"],
        [script, "plan", "consortium", "--rounds", "10", "--epsilon", "1", "-o", "plan.json"],
        [script, "verify", "plan.json"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode or done.stderr:
            sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout}{done.stderr}")
        if command[0] == sys.executable and not Path(done.stdout.strip()).is_relative_to(sys.prefix):
            sys.exit(f"fulcrum is imported from {done.stdout.strip()}, not from the wheel")


def main(wheel):
    """Looks into the wheel, then runs what was installed from it."""
    with zipfile.ZipFile(wheel) as opened:
        if missing := lacking(opened.namelist()):
            sys.exit(f"{wheel} lacks {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        run_in(folder)
    print(f"{wheel} is whole, and plans and verifies in an environment of its own.")


if __name__ == "__main__":
    main(sys.argv[1])
