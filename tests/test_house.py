"""The house itself: which room may import which, what an import costs, and what a wheel carries."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

import hirl

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hirl"

# Who may import whom, from the ground floor up. A room that is not named here fails the test: give it its place first.
MAY_IMPORT: dict[str, set[str]] = {
    "bfloat16": set(),
    "files": set(),
    "freed_memory": set(),
    "seeds": set(),
    "claims": {"files"},
    "ranks": set(),
    "signals": set(),
    "processes": {"ranks"},
    "recipes": set(),
    "config": {"recipes"},
    "terminal": {"files"},
    "hierarchy": {"bfloat16", "files", "ranks", "seeds"},  # torch only: usable alone
    "data": {"files", "seeds", "signals"},
    "encoders": {"files", "ranks"},  # and no run; processes drop the same features
    "metrics": set(),
    "methods": {"data", "encoders", "ranks"},  # never the hierarchy: a method does not know that HIRL exists
    "runs": {"config", "data", "encoders", "files", "hierarchy", "methods", "ranks", "terminal"},
    "features": {
        "bfloat16", "data", "encoders", "files", "freed_memory", "hierarchy", "methods", "processes", "ranks", "runs",
        "signals", "terminal",
    },
    "evals": {
        "config", "data", "encoders", "features", "files", "hierarchy", "methods", "metrics", "processes", "ranks",
        "runs", "seeds", "signals", "terminal",
    },
    "run": {"encoders", "evals", "hierarchy", "runs", "terminal"},  # `hirl.Run`
    "train": {
        "config", "data", "encoders", "features", "files", "freed_memory", "hierarchy", "methods", "metrics",
        "processes", "ranks", "recipes", "run", "runs", "seeds", "signals", "terminal",
    },
    "studies": {
        "claims", "config", "data", "evals", "features", "files", "hierarchy", "methods", "processes", "ranks", "run",
        "runs", "terminal", "train",
    },
    "explore": {
        "claims", "data", "encoders", "evals", "features", "files", "hierarchy", "methods", "metrics", "run", "runs",
        "terminal", "train",
    },
    "export": {"data", "encoders", "explore", "features", "files", "hierarchy", "methods", "runs", "terminal"},
    "integrations": {"hierarchy", "methods", "ranks", "seeds"},  # other people's trainers
    "cli": {
        "config", "data", "evals", "explore", "export", "features", "files", "freed_memory", "hierarchy", "methods",
        "processes", "recipes", "runs", "signals", "studies", "terminal", "train",
    },
    "__main__": {"cli"},
    "__init__": {  # the public names
        "data", "evals", "explore", "export", "hierarchy", "integrations", "methods", "run", "studies", "train",
    },
}  # fmt: skip
IMPLIED = {"tensorboard"}  # by torch.utils.tensorboard
OPTIONAL = {
    "datasets",
    "lightning",
    "networkx",
    "onnx",
    "onnxruntime",
    "pillow_heif",
    "pyarrow",
    "pytorch_lightning",
    "ray",
    "umap",
    "wandb",
}  # used when they are there, and asked for in words when not


def imports(tree: ast.AST, *, for_types: bool = True) -> Iterator[str]:
    """Every module that code imports, anywhere in it, and every name it imports from one, as module.name.

    `for_types`: whether what is imported only while types are checked counts.
    """
    if isinstance(tree, ast.Import):
        yield from (alias.name for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom):
        assert tree.level == 0, f"a relative import of {tree.module}"
        yield from (f"{tree.module}.{alias.name}" for alias in tree.names)
    skipped = isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING" and not for_types
    for child in tree.orelse if isinstance(tree, ast.If) and skipped else ast.iter_child_nodes(tree):
        yield from imports(child, for_types=for_types)


def rooms() -> dict[str, dict[str, set[str]]]:
    """Per room the rooms it imports, each with the files that do, imports inside functions included."""
    found: dict[str, dict[str, set[str]]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE)
        room = place.with_suffix("").parts[0]
        found.setdefault(room, {})
        for name in imports(ast.parse(file.read_text())):
            assert name != "hirl", f"{place} imports hirl itself: import the room"
            other = name.split(".")[1] if name.startswith("hirl.") else room
            if other not in (room, "__version__"):
                found[room].setdefault(other, set()).add(place.as_posix())
    return found


def files() -> dict[str, set[str]]:
    """Per file, as a module, the files it imports when it runs, imports inside functions included."""
    modules = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = ("hirl", *file.relative_to(PACKAGE).with_suffix("").parts)
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    found: dict[str, set[str]] = {}
    for module, file in modules.items():
        names = imports(ast.parse(file.read_text()), for_types=False)
        # `from hirl.data.views import view` imports a file, `from hirl.data.views import View` a name in one.
        homes = {name if name in modules else name.rpartition(".")[0] for name in names}
        found[module] = {home for home in homes if home in modules and home != module}
    return found


def circle(graph: Mapping[str, Iterable[str]]) -> list[str] | None:
    """Rooms or files that import each other in a ring, or None."""
    done: set[str] = set()

    def walk(place: str, way: list[str]) -> list[str] | None:
        if place in way:
            return [*way[way.index(place) :], place]
        if place in done:
            return None
        ring = next((ring for other in graph.get(place, ()) if (ring := walk(other, [*way, place]))), None)
        done.add(place)
        return ring

    return next((ring for place in graph if (ring := walk(place, []))), None)


def test_rooms_form_no_circle() -> None:
    graph = rooms()
    ring = circle(graph)
    files = [sorted(graph[one][other]) for one, other in pairwise(ring or [])]
    assert ring is None, f"rooms import each other in a circle: {' → '.join(ring)}, by {files}"
    graph["hierarchy"]["cli"] = {"hierarchy/tree.py"}
    assert circle(graph) is not None  # the check can fail


def test_files_form_no_circle() -> None:
    graph = files()
    ring = circle(graph)
    assert ring is None, f"files import each other in a circle: {' → '.join(ring)}"
    graph["hirl.runs.folder"].add("hirl.evals.evaluate")
    assert circle(graph) is not None  # the check can fail


@pytest.mark.parametrize(
    "code", ["import hirl.b", "from hirl.b import x", "from hirl import b", "import os\nif os:\n import hirl.b"]
)
def test_every_form_of_import_counts(code: str) -> None:
    inside = "def function():\n    " + code.replace("\n", "\n    ")
    for text in (code, inside):
        assert any(name.startswith("hirl.b") for name in imports(ast.parse(text), for_types=False))
    for_types = "if TYPE_CHECKING:\n    import hirl.b\nelse:\n    import hirl.c"
    assert list(imports(ast.parse(for_types), for_types=False)) == ["hirl.c"]


def test_imports_stay_within_the_plan() -> None:
    for room, others in rooms().items():
        assert room in MAY_IMPORT, f"{room} has no place in the house yet: add it to MAY_IMPORT in tests/test_house.py"
        for other, files in others.items():
            assert other in MAY_IMPORT[room], (
                f"{sorted(files)} import {other}; {room} may not: move the code, or change MAY_IMPORT and say why"
            )


def test_the_map_shows_every_room() -> None:
    """The table of packages in docs/architecture.md, from top to bottom, and MAY_IMPORT name the same rooms."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("| package | what it holds |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE)
    shown = [name.removesuffix("/").removesuffix(".py") for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    missing, unknown = MAY_IMPORT.keys() - set(shown), set(shown) - MAY_IMPORT.keys()
    assert not missing, f"add a row to the table of packages in docs/architecture.md: {sorted(missing)}"
    assert not unknown, f"docs/architecture.md has rows that MAY_IMPORT in tests/test_house.py lacks: {sorted(unknown)}"
    for place, room in enumerate(shown):
        below = MAY_IMPORT[room] & set(shown[place + 1 :])
        assert not below, f"{room} may import {sorted(below)}: in docs/architecture.md its row must be below theirs"


def test_paths_of_users_are_expanded_in_one_place() -> None:
    """`Path.expanduser` raises for a folder named ~old."""
    others = [
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if "expanduser(" in file.read_text() and file != PACKAGE / "files.py"
    ]
    assert not others, f"{others} call expanduser: use hirl.files.expanded"
    assert "expanduser(" in (PACKAGE / "files.py").read_text()  # the check can fail


def test_no_name_means_two_things() -> None:
    """A public class or function of one name stands in one room only; every command has its `options` and `run`."""
    homes: dict[str, dict[str, str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE)
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, {}).setdefault(place.with_suffix("").parts[0], place.as_posix())
    assert len(homes) > 500
    shared = {name: sorted(found.values()) for name, found in homes.items() if len(found) > 1}
    assert not shared, f"one name, several meanings: {shared}: rename one, or import the other"


# They named too many different things: say what a name holds or does.
RETIRED = {"apart", "said", "seen", "tell", "told", "whole", "words"}


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
        remedy = f"say what it holds, without the words of RETIRED in tests/test_house.py, {sorted(RETIRED)}"
        assert not retired, f"{file.relative_to(ROOT)} names something {sorted(retired)}: {remedy}"


def declared() -> set[str]:
    wanted = [name for name in importlib.metadata.requires("hirl") or [] if "extra ==" not in name]
    return {re.split(r"[\[<>=!~; ]", name)[0].lower().replace("_", "-") for name in wanted}


def test_every_library_in_use_is_declared_and_every_declared_one_used() -> None:
    distributions, wanted = importlib.metadata.packages_distributions(), declared()
    used = set()
    for file in PACKAGE.rglob("*.py"):
        for name in imports(ast.parse(file.read_text())):
            top = name.split(".")[0]
            if top not in sys.stdlib_module_names and top != "hirl" and top not in OPTIONAL:
                # Several distributions may contain a module: lightning_fabric is in pytorch-lightning as well.
                homes = {home.lower().replace("_", "-") for home in distributions.get(top, [])} & wanted
                assert homes, (
                    f"{file.relative_to(ROOT)} imports {top}, but no dependency contains it: add it to dependencies in "
                    "pyproject.toml, or, if it is imported only when asked for, to OPTIONAL in tests/test_house.py"
                )
                used |= homes
    assert used | IMPLIED == wanted, f"nothing imports {sorted(wanted - used - IMPLIED)}: remove it from pyproject.toml"


def test_importing_every_public_name_is_cheap() -> None:
    """At most half of the CPU time that torch itself takes, in one of three tries. Only training needs
    Lightning, and only the estimator scikit-learn."""
    code = (
        "import time; first = time.process_time(); import torch; start = time.process_time(); import hirl; "
        "heavy = ('compare', 'pretrain', 'tune', 'HierarchicalClustering'); "
        "[getattr(hirl, name) for name in dir(hirl) if name not in heavy]; "
        "print((time.process_time() - start) / (start - first))"
    )
    runs = (subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(3))
    assert any(float(run.stdout) <= 0.5 for run in runs)


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
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it may name a source tree
    code = "import pathlib, hirl; print(pathlib.Path(hirl.__file__).parent)"
    python = environment / "bin/python"
    shown = subprocess.run([python, "-c", code], capture_output=True, check=True, cwd=folder, env=variables)
    installed = Path(shown.stdout.decode().strip())
    assert installed.is_relative_to(environment)
    files = {
        file.relative_to(PACKAGE) for file in PACKAGE.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    }
    assert files <= {file.relative_to(installed) for file in installed.rglob("*")}
    line = [str(environment / "bin/hirl"), "pretrain", "--config", "small/dino", "--help"]
    shown = subprocess.run(line, capture_output=True, check=True, cwd=folder, env=variables)
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
    # Nothing is built on the user's machine: every dependency is a wheel already.
    pip = [str(tmp_path / "env/bin/python"), "-m", "pip", "install", "-q", "--only-binary", ":all:", str(wheel)]
    subprocess.run(pip, check=True)
    run_from(tmp_path / "env", tmp_path)
