"""Features in parts: those of one file in half precision, however many processes write them, each part once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hirl import Run
from hirl.cli.main import main
from hirl.data import ImageSet
from hirl.explore import embed_parts as module
from hirl.explore.embed import embed
from hirl.explore.embed_parts import embed_parts
from hirl.features.extractor import Extractor
from hirl.features.feature_parts import FeatureParts, make_parts, open_parts
from hirl.hierarchy.tree import PrototypeTree


def stored(folder: Path, kind: str) -> np.ndarray:
    return np.concatenate(list(open_parts(folder).arrays(kind)))


@pytest.fixture
def run(runs: dict[str, Run]) -> Run:
    return runs["hirl"]


def test_parts_hold_what_a_file_does(run: Run, tmp_path: Path) -> None:
    expected = embed(run, device="cpu", quiet=True)
    parts = embed_parts(run, out=tmp_path / "parts", parts=5, device="cpu", quiet=True)
    assert parts.rows == (29, 29, 29, 29, 28)
    for kind in ("features", "z0", "z2"):
        assert stored(tmp_path / "parts", kind).dtype == np.float16
        np.testing.assert_allclose(stored(tmp_path / "parts", kind), expected[kind], atol=1e-2, rtol=1e-3)
    assert np.array_equal(stored(tmp_path / "parts", "path"), expected["path"])


def test_finished_parts_stay_and_missing_ones_are_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"out": tmp_path / "parts", "device": "cpu", "quiet": True}
    parts = embed_parts(run, parts=4, **options)
    before = stored(tmp_path / "parts", "z0")
    (tmp_path / "parts" / "done-00002").unlink()
    with pytest.raises(ValueError, match=r"1 of the 4 parts in .* are missing: repeat the command"):
        open_parts(parts.folder)
    written: list[str] = []
    write = module.write_part

    def noted(parts: FeatureParts, name: str, extractor: Extractor, images: ImageSet) -> None:
        written.append(name)
        write(parts, name, extractor, images)

    monkeypatch.setattr(module, "write_part", noted)
    embed_parts(run, **options)  # as many parts as there are
    assert written == ["00002"]
    assert np.array_equal(stored(tmp_path / "parts", "z0"), before)
    with pytest.raises(ValueError, match="was begun with 4 parts, not 3: leave --parts out"):
        embed_parts(run, parts=3, **options)
    with pytest.raises(ValueError, match="holds features of other images, or by another encoder"):
        embed_parts(run, split="val", **options)


def flip_a_bit(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_a_damaged_part_is_named_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    folder = tmp_path / "parts"
    parts = make_parts(folder, 40, 2, {})
    for name in parts.names:
        parts.write(name, {"features": rows[parts.images(name)]})
    assert np.array_equal(stored(folder, "features"), rows.astype(np.float16))
    line = ["cluster", str(folder), "--levels", "4", "2", "--out", str(tmp_path / "tree.safetensors")]
    damaged = folder / "features-00001.npy"
    for damage in (lambda: flip_a_bit(damaged, 150), lambda: os.truncate(damaged, 150), damaged.unlink):
        damage()
        assert main(line) == 2
        message = capsys.readouterr().err
        assert f"{str(damaged)!r} is" in message
        assert "damaged" in message
        assert f"delete {str(folder / 'done-00001')!r} and repeat the hirl embed command" in message
        parts.write("00001", {"features": rows[parts.images("00001")]})
    flip_a_bit(folder / "parts.json", 130)
    with pytest.raises(ValueError, match=r"parts\.json' is missing, damaged or of another version"):
        open_parts(folder)


def test_a_tree_of_parts_by_command(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "parts")
    assert main(["embed", str(run.folder), "--out", out, "--parts", "3", "--device", "cpu"]) == 0
    assert "144 images written to 3 parts" in capsys.readouterr().out
    line = ["cluster", out, "--levels", "8", "2", "--out", str(tmp_path / "tree.safetensors")]
    assert main([*line, "--rows_per_prototype", "10", "--resample", "1"]) == 0
    assert "Clustering 80 of 144 rows, then assigning all of them" in capsys.readouterr().out
    tree = PrototypeTree.load(tmp_path / "tree.safetensors")
    rows = stored(tmp_path / "parts", "z0").astype(np.float32)
    assert tree.levels == (8, 2)
    assert tree.leaves.tolist() == tree.assign(rows).tolist()


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """A Ray of two workers on this machine."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_raylet_start_wait_time_s", "300")  # for a busy machine
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.mark.long
@pytest.mark.usefixtures("local_ray")
def test_two_workers_of_ray_write_the_same_parts(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embed_parts(run, out=tmp_path / "alone", parts=4, device="cpu", workers=0, quiet=True)
    monkeypatch.setattr(module, "write_part", None)  # here; the workers have their own
    monkeypatch.chdir(run.folder.parent)
    embed_parts(run.folder.name, out=tmp_path / "ray", parts=4, ray=2, device="cpu", workers=0, quiet=True)
    for kind in ("features", "z0", "path"):
        assert np.array_equal(stored(tmp_path / "ray", kind), stored(tmp_path / "alone", kind))


def mortal_network(folder: Path) -> nn.Module:
    """Kills, once, the process that is about to finish its second part. Each pass of a part leaves a line."""

    class Mortal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 8)
            self.passes = 0

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            features = self.layer(images.mean((2, 3)))
            if len(images) == 10:  # and not a pass that finds the width of the features
                self.passes += 1
                with (folder / "passes").open("a") as file:
                    file.write(f"{os.getpid()} {features.sum():.6f}\n")
                if self.passes == 2 and not (folder / "killed").exists():
                    with suppress(FileExistsError), (folder / "killed").open("x"):
                        os.kill(os.getpid(), signal.SIGKILL)
            return features

    return Mortal()


@pytest.mark.long
@pytest.mark.usefixtures("local_ray")
def test_the_part_of_a_killed_worker_is_done_again_and_no_other(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    options: dict[str, Any] = {"parts": 6, "device": "cpu", "workers": 0, "quiet": True}
    embed_parts(mortal_network(tmp_path), tmp_path / "images.npz", out=tmp_path / "ray", ray=2, **options)
    passes = [line.split() for line in (tmp_path / "passes").read_text().splitlines()]
    assert (tmp_path / "killed").exists()
    done = Counter(part for _, part in passes)
    assert sorted(done.values()) == [1, 1, 1, 1, 1, 2]
    killed = next(worker for worker, part in passes if done[part] == 2)
    assert [done[part] for worker, part in passes if worker == killed] == [1, 2]  # its first part stays
    embed_parts(mortal_network(tmp_path), tmp_path / "images.npz", out=tmp_path / "alone", **options)
    assert np.array_equal(stored(tmp_path / "ray", "features"), stored(tmp_path / "alone", "features"))
