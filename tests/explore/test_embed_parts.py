"""Features in parts: those of one file in half precision, however many processes write them, each part once."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hirl import Run
from hirl.cli.main import main
from hirl.data import ImageSet
from hirl.explore import embed_parts as module
from hirl.explore.embed import embed
from hirl.explore.embed_parts import embed_parts
from hirl.features.extractor import Extractor
from hirl.features.feature_parts import FeatureParts, open_parts
from hirl.hierarchy.tree import PrototypeTree

HAS_RAY = importlib.util.find_spec("ray") is not None


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


def test_a_tree_of_parts_by_command(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "parts")
    assert main(["embed", str(run.folder), "--out", out, "--parts", "3", "--device", "cpu"]) == 0
    assert "144 images written to 3 parts" in capsys.readouterr().out
    line = ["cluster", out, "--levels", "8", "2", "--out", str(tmp_path / "tree.safetensors")]
    assert main([*line, "--rows_per_prototype", "10", "--resample", "1"]) == 0
    assert "80 of 144 rows are clustered, and all are assigned" in capsys.readouterr().out
    tree = PrototypeTree.load(tmp_path / "tree.safetensors")
    rows = stored(tmp_path / "parts", "z0").astype(np.float32)
    assert tree.levels == (8, 2)
    assert tree.leaves.tolist() == tree.assign(rows).tolist()


@pytest.mark.long
@pytest.mark.skipif(not HAS_RAY, reason="ray is not installed")
def test_two_workers_of_ray_write_the_same_parts(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "300")
    import ray

    embed_parts(run, out=tmp_path / "alone", parts=4, device="cpu", workers=0, quiet=True)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        embed_parts(str(run.folder), out=tmp_path / "ray", parts=4, ray=2, device="cpu", workers=0, quiet=True)
    finally:
        ray.shutdown()
    for kind in ("features", "z0", "path"):
        assert np.array_equal(stored(tmp_path / "ray", kind), stored(tmp_path / "alone", kind))
