"""Run folders with a damaged file: every command ends as without the damage or says so, and keeps what can be kept.

    python -m pytest -n 0 tests/runs/test_damage.py tests/runs/test_adapted_damage.py

damages every file of finished and unfinished runs, adapted ones included: 200 commands of runs from nothing, drawn from
all files, damages and commands, and those of adapted runs; and 400 times a bit, 2,000 bytes or a tenth of a file that
is then read.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import SafetensorError, safe_open

from hirl.cli.main import main
from hirl.encoders.encoder_file import load_encoder
from hirl.features import feature_cache
from hirl.hierarchy.tree import PrototypeTree
from hirl.run import Run
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.images_file import read_images
from hirl.runs.metrics import read_reports
from hirl.runs.results import read_result

from ..train.test_killed import same

TINY: dict[str, Any] = {
    "method": {
        "class_path": "hirl.methods.MoCoV2",
        "init_args": {
            "backbone": "resnet10t",
            "backbone_args": {"channels": [4, 4, 8, 8], "stem_width": 4},
            "dim": 8,
            "hidden": 8,
            "queue_length": 96,
            "momentum": 0.9,
            "bn_splits": 2,
        },
    },
    "hierarchy": {"levels": [24, 6], "negatives": 5, "start_epoch": 1},
    "epochs": 3,
    "batch_size": 48,
    "knn_every": 0,
    "keep_every": 1,
}
RUNS = ("finished", "unfinished")
DAMAGES = ("truncated", "emptied", "deleted", "noise", "a bit", "2,000 bytes", "one byte in ten")
COMMANDS = ("show", "runs", "evaluate", "embed", "resume")
SEEDS, CASES = 10, 20


@dataclass(frozen=True)
class Case:
    run: str
    file: str
    damage: str
    command: str


@pytest.fixture(scope="module")
def folders(picture_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs beside their images and the recipes that continue them."""
    root = tmp_path_factory.mktemp("damage")
    shutil.copy(picture_files, root / "shapes.npz")
    (root / "finished.yaml").write_text(yaml.safe_dump(TINY | {"data": str(root / "shapes.npz")}))
    shutil.copy(root / "finished.yaml", root / "unfinished.yaml")
    assert run_command("resume", root, "finished")[0] == 0
    shutil.copytree(root / "finished", root / "unfinished")
    rewind(Run(root / "unfinished"))
    for name, command in itertools.product(RUNS, ("evaluate", "embed")):
        assert run_command(command, root, name)[0] == 0
        if command == "embed":
            (root / "z.npz").rename(root / f"{name}.npz")
    return root


@pytest.fixture(scope="module")
def outputs(folders: Path) -> dict[tuple[str, str], str]:
    """What the commands that only read print of the undamaged runs."""
    return {
        (name, command): run_command(command, folders, name)[1]
        for name, command in itertools.product(RUNS, ("show", "evaluate"))
    }


def rewind(run: Run) -> None:
    """Make a run one that was killed after its second epoch."""
    shutil.copy(run.checkpoints_folder / "epoch-0002.ckpt", run.checkpoint_file)
    (run.checkpoints_folder / "epoch-0003.ckpt").unlink()
    run.encoder_file.unlink()
    run.drop_reports_after(load_checkpoint(run.checkpoint_file)["step"])


def run_command(command: str, root: Path, name: str) -> tuple[int, str, str]:
    """Run a command in `root`; return its exit code, output and errors."""
    line = {
        "show": ["show", name],
        "runs": ["runs", "."],
        "evaluate": ["evaluate", name, "knn", "--knn.ks", "10", "20", "--device", "cpu"],
        "embed": ["embed", name, "--out", "z.npz", "--overwrite", "--device", "cpu"],
        "resume": ["pretrain", "--config", f"{name}.yaml", "--out", name, "--accelerator", "cpu", "--devices", "1"],
    }[command]
    out, errors = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        warnings.catch_warnings(),
    ):
        patch.chdir(root)
        warnings.simplefilter("default")
        code = main(line)
    return code, out.getvalue(), errors.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != ".lock"
    }


def damage(file: Path, how: str, dice: random.Random) -> None:
    if how == "deleted":
        file.unlink()
    elif how == "emptied":
        file.write_bytes(b"")
    elif how == "truncated":
        file.write_bytes(file.read_bytes()[: dice.randrange(max(1, file.stat().st_size))])
    elif how == "noise":
        file.write_bytes(dice.randbytes(max(64, file.stat().st_size)))
    else:
        damage_in_place(file, how, dice)


def damage_in_place(file: Path, how: str, dice: random.Random) -> None:
    """The file keeps its size."""
    content = bytearray(file.read_bytes())
    if how == "a bit":
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    elif how == "2,000 bytes":
        length = min(2000, len(content))
        start = dice.randrange(len(content) - length + 1)
        content[start : start + length] = dice.randbytes(length)
    else:
        for place in dice.sample(range(len(content)), -(-len(content) // 10)):
            content[place] = dice.randrange(256)
    file.write_bytes(content)


def all_cases(root: Path) -> list[Case]:
    return [
        Case(run, file, how, command)
        for run in RUNS
        for file, how, command in itertools.product(contents(root / run), DAMAGES, COMMANDS)
    ]


def may_refuse(case: Case) -> bool:
    """Without its configuration a run cannot be opened, without its checkpoint it has no heads and cannot continue."""
    if case.file == "config.yaml":
        return case.command != "runs"
    if case.file == "last.ckpt":
        return case.command == "embed" or (case.command in ("evaluate", "resume") and "unfinished" in case.run)
    return False


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_damaged_file_costs_nothing_else(
    seed: int, folders: Path, outputs: dict[tuple[str, str], str], tmp_path: Path
) -> None:
    dice = random.Random(seed)
    cases = all_cases(folders)
    random.Random(0).shuffle(cases)  # the same order for all seeds, of which each takes its own part
    assert len(cases) >= SEEDS * CASES
    reference = Run(folders / "finished").encoder_weights()[0]
    for number, case in enumerate(cases[seed * CASES : (seed + 1) * CASES]):
        root = tmp_path / str(number)
        root.mkdir()
        shutil.copytree(folders / case.run, root / case.run)
        shutil.copy(folders / f"{case.run}.yaml", root)
        shutil.copy(folders / "shapes.npz", root)
        damage(root / case.run / case.file, case.damage, dice)
        try:
            check_case(case, root, folders, outputs.get((case.run, case.command)), reference)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, {case}: {error!r}") from error
        shutil.rmtree(root)


def check_case(case: Case, root: Path, folders: Path, expected: str | None, reference: dict[str, torch.Tensor]) -> bool:
    """Run the command on the damaged copy in `root`, and check all that follows; whether it continued the run."""
    before = contents(root / case.run)
    code, out, errors = run_command(case.command, root, case.run)
    check_outcome(case, code, out, errors)
    if code == 0:
        check_same(case, out, errors, expected, root, folders)
    check_files(case, code, before, contents(root / case.run))
    continued = case.command == "resume" and code == 0
    if continued:
        check_continued(Run(root / case.run), before, reference)
    return continued


def check_outcome(case: Case, code: int, out: str, errors: str) -> None:
    assert code in (0, 2), (code, errors)
    assert "Traceback" not in out + errors
    if code == 0:
        return
    assert may_refuse(case), errors
    lines = [line for line in errors.splitlines() if line.startswith("hirl: ") and "hirl: warning:" not in line]
    assert len(lines) == 1, errors
    assert os.path.basename(case.file) in lines[0], errors  # noqa: PTH119 (a name, not a path)


def check_same(case: Case, out: str, errors: str, expected: str | None, root: Path, folders: Path) -> None:
    """Nothing is silently different: figures and arrays are those of the undamaged run, or the damage is named."""
    named = Path(case.file).name in out + errors
    if case.command == "show":
        assert without_files(out) == without_files(expected or "") or named, out
    elif case.command == "evaluate":
        assert figures(out) == figures(expected or ""), out
    elif case.command == "embed":
        with np.load(root / "z.npz") as mine, np.load(folders / f"{case.run}.npz") as others:
            assert mine.files == others.files
            for name in mine.files:
                assert np.array_equal(mine[name], others[name]), name


def without_files(out: str) -> list[str]:
    """What `show` prints, but for the list of files that are there."""
    return [line for line in out.splitlines() if not line.startswith("files: ")]


def figures(out: str) -> list[str]:
    """The numbers of the tables that an evaluation prints."""
    return re.findall(r"\d+\.\d+ ?%?", out)


READERS: dict[str, Callable[[Path], Any]] = {
    "last.ckpt": load_checkpoint,
    "checkpoints": load_checkpoint,
    "encoder.safetensors": load_encoder,
    "tree.safetensors": lambda file: PrototypeTree.load(file).tensors(),
    "features": lambda file: feature_cache._read(file, about_of(file)),
    "images.tsv": lambda file: read_images(Run(file.parent)),
    "config.yaml": lambda file: Run(file.parent).config,
    "about.json": lambda file: Run(file.parent).launches(),
    "metrics.jsonl": lambda file: list(Run(file.parent).metrics()),
    "results": read_result,
}


def about_of(file: Path) -> str:
    with safe_open(file, framework="pt") as opened:
        return str(opened.metadata()["about"]).partition(" ")[2]


@pytest.mark.filterwarnings("ignore:.*computed again")
def test_no_damage_in_place_is_read_as_something_else(folders: Path, tmp_path: Path) -> None:
    """400 times a bit, 2,000 bytes or a tenth of a file: its reader refuses it or returns what was written."""
    dice = random.Random(0)
    files = [(run, name) for run in RUNS for name in contents(folders / run) if name.split("/")[0] in READERS]
    assert {name.split("/")[0] for _, name in files} == set(READERS)
    refused = 0
    for trial in range(400):
        run, name = files[trial % len(files)]
        file = tmp_path / run / name
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folders / run / name, file)
        read = READERS[name.split("/")[0]]
        written = read(file)
        assert written
        damage_in_place(file, DAMAGES[4 + trial % 3], dice)
        try:
            found = read(file)
        except (ValueError, SafetensorError):
            found = None
        refused += not found
        if found and name == "metrics.jsonl":
            assert all(line in written for line in found), (run, name, trial)
        elif found:
            same(written, found, f"{run} {name} {trial}")
    assert refused > 300


def check_files(case: Case, code: int, before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """A command that refuses or only reads leaves all files as they are; others write what is theirs."""
    written: tuple[str, ...] = ()
    if code == 0 and case.command in ("evaluate", "embed"):
        written = ("results/", "features/")
    elif code == 0 and case.command == "resume":
        written = ("about.json", "encoder", "tree", "last.ckpt", "log.txt", "metrics", "images.tsv", "tensorboard/")
        written += ("checkpoints/epoch-0003.ckpt", "adaptation.json", "start.safetensors")
    for name, content in before.items():
        if not name.startswith(written):
            assert after.get(name) == content, f"{name} has changed"


def check_continued(run: Run, before: dict[str, bytes], reference: dict[str, torch.Tensor]) -> None:
    """The run is finished, with all reports it had, and with the encoder of an undamaged run."""
    assert run.finished
    assert run.tree.levels == (24, 6)
    weights = run.encoder_weights()[0]
    assert all(torch.equal(weights[name], reference[name]) for name in reference)
    (run.folder.parent / "before.jsonl").write_bytes(before.get("metrics.jsonl", b""))
    had, _ = read_reports(run.folder.parent / "before.jsonl")
    now = list(run.metrics())
    assert all(line in now for line in had if line["step"] <= 9)


def test_every_kind_of_damage_is_among_the_cases(folders: Path) -> None:
    cases = all_cases(folders)
    random.Random(0).shuffle(cases)
    chosen = cases[: SEEDS * CASES]
    assert {case.damage for case in chosen} == set(DAMAGES)
    assert {case.command for case in chosen} == set(COMMANDS)
    assert {case.run for case in chosen} == set(RUNS)
    names = {case.file for case in chosen}
    assert {"config.yaml", "about.json", "metrics.jsonl", "encoder.safetensors", "tree.safetensors"} <= names
    assert {"last.ckpt", "images.tsv", "log.txt"} <= names
