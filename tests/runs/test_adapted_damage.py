"""Adapted runs with a damaged file: `test_damage` with the frozen start, the comparison with it and cached views."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import SafetensorError

from hirl.encoders.backbones import make_backbone
from hirl.encoders.encoder_file import EncoderMetadata, load_encoder, save_encoder
from hirl.run import Run
from hirl.runs.faults import find_faults

from ..train.test_killed import same
from .test_damage import (
    COMMANDS,
    READERS,
    TINY,
    Case,
    check_case,
    check_continued,
    contents,
    damage,
    rewind,
    run_command,
)

BACKBONE: dict[str, Any] = {"channels": [4, 4, 8, 8], "stem_width": 4}
HALVES = (0.5, 0.5, 0.5)
RUNS = ("adapted", "unfinished-adapted")
DAMAGES = ("truncated", "emptied", "deleted", "noise", "a bit")
PARTS = 4
IN_PLACE = ("a bit", "2,000 bytes", "one byte in ten")
ADAPTED = {"start.safetensors": load_encoder, "adaptation.json": lambda file: Run(file.parent).adaptation}
READ = READERS | ADAPTED


@pytest.fixture(scope="module")
def folders(picture_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The runs beside their images, their start and the recipes that continue them; views are cached there, too."""
    root = tmp_path_factory.mktemp("adapted")
    shutil.copy(picture_files, root / "shapes.npz")
    torch.manual_seed(0)
    network = make_backbone("resnet10t", **BACKBONE)
    for _ in range(30):
        network(torch.rand(64, 3, 16, 16))  # so that batch norms have statistics
    save_encoder(root / "start.safetensors", network, EncoderMetadata("resnet10t", BACKBONE, 16, HALVES, HALVES))
    adapted = TINY["method"]["init_args"] | {"backbone_args": BACKBONE | {"adapter": 8}}
    recipe = TINY | {"method": {"class_path": "hirl.methods.MoCoV2", "init_args": adapted}}
    recipe |= {"data": str(root / "shapes.npz"), "encoder": "start.safetensors", "cached_views": 2}
    for name in RUNS:
        (root / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        code, _, errors = run_command("resume", root, "adapted")
        assert code == 0, errors
        shutil.copytree(root / "adapted", root / "unfinished-adapted")
        rewind(Run(root / "unfinished-adapted"))
        Run(root / "unfinished-adapted").adaptation_file.unlink()
        for name, command in itertools.product(RUNS, ("evaluate", "embed")):
            assert run_command(command, root, name)[0] == 0
            if command == "embed":
                (root / "z.npz").rename(root / f"{name}.npz")
        yield root


@pytest.fixture
def reference(folders: Path) -> dict[str, torch.Tensor]:
    return Run(folders / "adapted").encoder_weights()[0]


def cases_of(root: Path) -> list[Case]:
    """What adapted runs alone have, damaged in every way, and the other files in two ways each."""
    commands, ways = itertools.cycle(COMMANDS), itertools.cycle(DAMAGES)
    cases = []
    for run in RUNS:
        for file in contents(root / run):
            if file.split("/")[0] in ADAPTED:
                cases += [Case(run, file, how, next(commands)) for how in DAMAGES]
            elif file.split("/")[0] in READ and not file.startswith("checkpoints/"):
                cases += [Case(run, file, next(ways), next(commands)) for _ in range(2)]
    return cases


def copied(folders: Path, run: str, to: Path) -> Path:
    to.mkdir()
    shutil.copytree(folders / run, to / run)
    for file in (f"{run}.yaml", "shapes.npz", "start.safetensors"):
        shutil.copy(folders / file, to)
    return to


@pytest.fixture(scope="module")
def outputs(folders: Path) -> dict[tuple[str, str], str]:
    """What the commands that only read print of the undamaged runs."""
    return {(run, kind): run_command(kind, folders, run)[1] for run in RUNS for kind in ("show", "evaluate")}


@pytest.mark.parametrize("part", range(PARTS))
def test_a_damaged_file_costs_nothing_else(
    part: int,
    folders: Path,
    outputs: dict[tuple[str, str], str],
    reference: dict[str, torch.Tensor],
    tmp_path: Path,
) -> None:
    dice = random.Random(part)
    cases = cases_of(folders)
    assert {case.file.split("/")[0] for case in cases} == READ.keys() - {"checkpoints"}
    assert {case.command for case in cases if case.file in ADAPTED} == set(COMMANDS)
    failed = []
    for number, case in enumerate(cases[part::PARTS]):
        root = copied(folders, case.run, tmp_path / str(number))
        damage(root / case.run / case.file, case.damage, dice)
        try:
            if check_case(case, root, folders, outputs.get((case.run, case.command)), reference):
                assert Run(root / case.run).adaptation == Run(folders / "adapted").adaptation
        except (Exception, SystemExit) as error:  # so that all are listed
            failed.append(f"{case}: {error!r}")
        shutil.rmtree(root)
    assert not failed, "\n".join(failed)


@pytest.mark.filterwarnings("ignore:.*computed again")
def test_no_damage_is_read_as_something_else(folders: Path, tmp_path: Path) -> None:
    dice = random.Random(0)
    files = [(run, name) for run in RUNS for name in contents(folders / run) if name.split("/")[0] in READ]
    for (run, name), how in itertools.product(files, (*DAMAGES[:2], *IN_PLACE)):
        file = tmp_path / run / name
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folders / run / name, file)
        read = READ[name.split("/")[0]]
        written = read(file)
        assert written
        damage(file, how, dice)
        try:
            found = read(file)
        except (ValueError, SafetensorError):
            found = None
        if found and name == "metrics.jsonl":
            assert all(line in written for line in found), (run, name, how)
        elif found:
            same(written, found, f"{run} {name} {how}")


def test_cached_views_that_are_damaged_are_computed_again(
    folders: Path, reference: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(0)
    shutil.copytree(folders / "cache", tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    views = max((tmp_path / "cache" / "hirl" / "views").glob("*.npy"), key=lambda file: file.stat().st_size)
    sound = views.read_bytes()
    for how in ("truncated", "emptied", "deleted", "a bit"):
        root = copied(folders, "unfinished-adapted", tmp_path / how)
        damage(views, how, dice)
        code, out, errors = run_command("resume", root, "unfinished-adapted")
        assert code == 0, errors
        assert "Traceback" not in out + errors
        assert how == "deleted" or f"{views.name}' is damaged" in errors, errors
        assert views.read_bytes() == sound
        check_continued(Run(root / "unfinished-adapted"), {}, reference)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_start_is_named(how: str, folders: Path, tmp_path: Path) -> None:
    root = copied(folders, "unfinished-adapted", tmp_path / "root")
    before = contents(root / "unfinished-adapted")
    damage(root / "start.safetensors", how, random.Random(0))
    code, out, errors = run_command("resume", root, "unfinished-adapted")
    assert code == 2
    assert "Traceback" not in out + errors
    assert "start.safetensors" in errors.splitlines()[-1]
    assert contents(root / "unfinished-adapted") == before


def test_lost_reports_are_named(folders: Path, tmp_path: Path) -> None:
    for run in RUNS:
        file = Run(copied(folders, run, tmp_path / run) / run).metrics_file
        lines = file.read_text().splitlines(keepends=True)
        for kept, named in {
            "".join(lines)[:-5]: "1 line of metrics.jsonl is damaged",
            "": "metrics.jsonl lacks its last reports",
            "".join(lines[:-1]): "metrics.jsonl lacks its last reports",
        }.items():
            file.write_text(kept)
            found = find_faults(Run(file.parent))
            assert named in found or (run != "adapted" and kept == "".join(lines[:-1])), (run, found)
