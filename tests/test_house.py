"""The house itself: which room may import which, what an import costs, and what a wheel carries."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import hirl

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hirl"

# Who may import whom, from the ground floor up. A room that is not named here fails the test: give it its place first.
MAY_IMPORT: dict[str, set[str]] = {
    "files": set(),
    "seeds": set(),
    "recipes": set(),
    "config": {"recipes"},
    "terminal": {"files"},
    "hierarchy": {"files", "seeds"},  # torch only: usable alone
    "data": {"files", "seeds"},
    "backbones": set(),
    "metrics": set(),
    "methods": {"backbones", "data"},  # never the hierarchy: a method does not know that HIRL exists
    "runs": {"backbones", "config", "data", "files", "hierarchy", "methods"},
    "train": {"backbones", "config", "data", "files", "hierarchy", "methods", "metrics", "runs", "seeds", "terminal"},
    "evals": {"backbones", "config", "data", "files", "hierarchy", "methods", "metrics", "runs", "seeds", "terminal"},
    "studies": {"config", "data", "evals", "files", "hierarchy", "methods", "runs", "terminal", "train"},
    "explore": {"data", "evals", "files", "hierarchy", "methods", "metrics", "runs", "terminal", "train"},
    "cli": {
        "config", "data", "evals", "explore", "files", "hierarchy", "methods", "recipes", "runs", "studies", "terminal",
        "train",
    },
    "__init__": {"data", "evals", "explore", "hierarchy", "methods", "runs", "studies", "train"},  # the public names
}  # fmt: skip
# The one look upwards: `Run.evaluate`, so that a run can be asked for its figures.
EXCEPTION = ("runs/folder.py", "evals")
IMPLIED = {"tensorboard"}  # by torch.utils.tensorboard
OPTIONAL = {
    "datasets",
    "pillow_heif",
    "pyarrow",
    "umap",
    "wandb",
}  # used when they are there, and asked for in words when not


def imports(file: Path) -> Iterator[str]:
    """Every module a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            # `from hirl import files` names the room in the imported name
            yield from (f"hirl.{alias.name}" for alias in node.names) if node.module == "hirl" else [node.module or ""]


def rooms() -> dict[str, dict[str, set[str]]]:
    """Per room the rooms it imports, each with the files that do, imports inside functions included."""
    found: dict[str, dict[str, set[str]]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE)
        room = place.with_suffix("").parts[0]
        found.setdefault(room, {})
        for name in imports(file):
            assert name != "hirl", f"{place} imports hirl itself: import the room"
            other = name.split(".")[1] if name.startswith("hirl.") else room
            if other not in (room, "__version__") and (place.as_posix(), other) != EXCEPTION:
                found[room].setdefault(other, set()).add(place.as_posix())
    return found


def circle(graph: dict[str, dict[str, set[str]]]) -> list[str] | None:
    """Rooms that import each other in a ring, or None."""
    done: set[str] = set()

    def walk(room: str, way: list[str]) -> list[str] | None:
        if room in way:
            return [*way[way.index(room) :], room]
        if room in done:
            return None
        ring = next((ring for other in graph.get(room, {}) if (ring := walk(other, [*way, room]))), None)
        done.add(room)
        return ring

    return next((ring for room in graph if (ring := walk(room, []))), None)


def test_rooms_form_no_circle() -> None:
    graph = rooms()
    ring = circle(graph)
    files = [sorted(graph[one][other]) for one, other in pairwise(ring or [])]
    assert ring is None, f"rooms import each other in a circle: {' → '.join(ring)}, by {files}"
    graph["hierarchy"]["cli"] = {"hierarchy/tree.py"}
    assert circle(graph) is not None  # the check can fail


def test_imports_stay_within_the_plan() -> None:
    for room, others in rooms().items():
        assert room in MAY_IMPORT, f"{room} has no place in the house yet"
        for other, files in others.items():
            assert other in MAY_IMPORT[room], f"{sorted(files)} import {other}; {room} may not"


RETIRED = {"apart", "said", "seen", "tell", "told", "whole", "words"}  # they named too many different things


def names(file: Path) -> Iterator[str]:
    """Every name that a file gives to something or uses."""
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield "" if name.startswith("test_") else name  # a sentence rather than a name
            case ast.keyword(arg=str(name)):
                yield name


def test_retired_words_name_nothing() -> None:
    folders = (PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples")
    for file in (file for folder in folders for file in folder.rglob("*.py")):
        retired = {name for name in names(file) if not RETIRED.isdisjoint(name.lower().split("_"))}
        assert not retired, f"{file.relative_to(ROOT)} names something {sorted(retired)}"


def declared() -> set[str]:
    wanted = [name for name in importlib.metadata.requires("hirl") or [] if "extra ==" not in name]
    return {re.split(r"[\[<>=!~; ]", name)[0].lower().replace("_", "-") for name in wanted}


def test_every_library_in_use_is_declared_and_every_declared_one_used() -> None:
    homes = importlib.metadata.packages_distributions()
    used = set()
    for file in PACKAGE.rglob("*.py"):
        for name in imports(file):
            top = name.split(".")[0]
            if top not in sys.stdlib_module_names and top != "hirl" and top not in OPTIONAL:
                used |= {home.lower().replace("_", "-") for home in homes[top]}
    assert used | IMPLIED == declared()


def test_importing_every_public_name_is_cheap() -> None:
    """At most 0.3 s of CPU time on top of torch, the best of three. Only training needs Lightning."""
    code = (
        "import time, torch; start = time.process_time(); import hirl; "
        "[getattr(hirl, name) for name in dir(hirl) if name not in ('compare', 'pretrain', 'tune')]; "
        "print(time.process_time() - start)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(3)]
    assert min(float(run.stdout) for run in runs) <= 0.3


def test_every_public_name_is_there() -> None:
    for name in dir(hirl):
        assert getattr(hirl, name) is not None
    for name in dir(hirl.data):
        assert getattr(hirl.data, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = hirl.nonsense


def test_help_needs_no_torch() -> None:
    code = "import sys, hirl.cli.main; hirl.cli.main.main(['--version']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def run_from(environment: Path, folder: Path) -> None:
    """The command of an installed wheel, away from the source tree, and every file of the package beside it."""
    code = "import pathlib, hirl; print(pathlib.Path(hirl.__file__).parent)"
    shown = subprocess.run([environment / "bin/python", "-c", code], capture_output=True, check=True, cwd=folder)
    installed = Path(shown.stdout.decode().strip())
    assert installed.is_relative_to(environment)
    files = {
        file.relative_to(PACKAGE) for file in PACKAGE.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    }
    assert files <= {file.relative_to(installed) for file in installed.rglob("*")}
    line = [str(environment / "bin/hirl"), "pretrain", "--config", "small/dino", "--help"]
    shown = subprocess.run(line, capture_output=True, check=True, cwd=folder)
    assert "--method.prototypes" in shown.stdout.decode()


def test_a_wheel_runs_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """The libraries are lent from here, to save minutes; `make test-long` installs them as well."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env/bin/python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, check=True
    ).stdout.decode()
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True)
    # A .pth file lends the libraries but not this checkout, which is itself a .pth file that is not followed.
    (Path(site.strip()) / "lent.pth").write_text(sysconfig.get_path("purelib"))
    run_from(tmp_path / "env", tmp_path)


@pytest.mark.long
def test_a_wheel_brings_all_it_needs(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    subprocess.run([tmp_path / "env/bin/python", "-m", "pip", "install", "-q", wheel], check=True)
    run_from(tmp_path / "env", tmp_path)
