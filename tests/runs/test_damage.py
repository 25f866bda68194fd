"""Run folders with a damaged file: every command ends well or in one sentence, and keeps what can be kept."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from hirl.cli.main import main
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.folder import Run

FORMAT_1 = Path(__file__).parent / "format_1"
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
RUNS = ("finished", "unfinished", "old_finished", "old_unfinished")
DAMAGES = ("truncated", "emptied", "deleted", "noise")
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
    """The four runs beside their images and the recipes that continue them."""
    root = tmp_path_factory.mktemp("damage")
    shutil.copy(picture_files, root / "shapes.npz")
    (root / "finished.yaml").write_text(yaml.safe_dump(TINY | {"data": str(root / "shapes.npz")}))
    shutil.copy(root / "finished.yaml", root / "unfinished.yaml")
    for name in ("finished", "unfinished"):
        shutil.copytree(FORMAT_1 / name, root / f"old_{name}")
        shutil.copy(FORMAT_1 / name / "config.yaml", root / f"old_{name}.yaml")
    assert run_command("resume", root, "finished")[0] == 0
    shutil.copytree(root / "finished", root / "unfinished")
    rewind(Run(root / "unfinished"))
    for name in ("finished", "old_finished"):
        for command in ("evaluate", "embed"):
            assert run_command(command, root, name)[0] == 0
    return root


def rewind(run: Run) -> None:
    """Make a run one that was killed after its second epoch."""
    shutil.copy(run.checkpoints_folder / "epoch-0002.ckpt", run.checkpoint_file)
    (run.checkpoints_folder / "epoch-0003.ckpt").unlink()
    run.encoder_file.unlink()
    run.forget_after(load_checkpoint(run.checkpoint_file)["step"])


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
    else:
        file.write_bytes(dice.randbytes(max(64, file.stat().st_size)))


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
def test_a_damaged_file_costs_nothing_else(seed: int, folders: Path, tmp_path: Path) -> None:
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
        before = contents(root / case.run)
        try:
            code, out, errors = run_command(case.command, root, case.run)
            check_outcome(case, code, out, errors)
            check_files(case, code, before, contents(root / case.run))
            if case.command == "resume" and code == 0:
                check_continued(case, Run(root / case.run), before, reference)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, {case}: {error!r}") from error
        shutil.rmtree(root)


def check_outcome(case: Case, code: int, out: str, errors: str) -> None:
    assert code in (0, 2), (code, errors)
    assert "Traceback" not in out + errors
    if code == 0:
        return
    assert may_refuse(case), errors
    lines = [line for line in errors.splitlines() if line.startswith("hirl: ") and "hirl: warning:" not in line]
    assert len(lines) == 1, errors
    assert os.path.basename(case.file) in lines[0], errors  # noqa: PTH119 (a name, not a path)


def check_files(case: Case, code: int, before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """A command that refuses or only reads leaves all files as they are; others write what is theirs."""
    written: tuple[str, ...] = ()
    if code == 0 and case.command in ("evaluate", "embed"):
        written = ("results/", "features/")
    elif code == 0 and case.command == "resume":
        written = ("about.json", "encoder", "tree", "last.ckpt", "log.txt", "metrics", "images.tsv", "tensorboard/")
        written += ("checkpoints/epoch-0003.ckpt",)
    for name, content in before.items():
        if not name.startswith(written):
            assert after.get(name) == content, f"{name} has changed"


def check_continued(case: Case, run: Run, before: dict[str, bytes], reference: dict[str, torch.Tensor]) -> None:
    """The run is finished, with all reports it had, and with the encoder of an undamaged run."""
    assert run.finished
    assert run.tree.levels == (24, 6)
    weights = run.encoder_weights()[0]
    if not case.run.startswith("old"):
        assert all(torch.equal(weights[name], reference[name]) for name in reference)
    had = []
    for line in before.get("metrics.jsonl", b"").split(b"\n"):
        with contextlib.suppress(ValueError):
            had.append(json.loads(line))
    now = list(run.metrics())
    last = load_checkpoint(FORMAT_1 / "unfinished" / "last.ckpt")["step"] if case.run == "old_unfinished" else 9
    assert all(line in now for line in had if line["step"] <= last)


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
