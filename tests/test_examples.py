"""The examples run as documented."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from .forked import Forked

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_loop_of_ones_own_gains_a_tree() -> None:
    command = [sys.executable, str(EXAMPLES / "own_loop.py"), "--epochs", "3", "--start-epoch", "1"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert "loss_spd 0.000" in lines[0]
    assert "loss_spd 0.000" not in lines[2]
    assert lines[-1].startswith("level 2: 10 nodes")


def hirl(*arguments: str | Path, folder: Path) -> Forked:
    paths = [str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = Forked("hirl.cli.main", *arguments, env={"PYTHONPATH": os.pathsep.join(paths)}, cwd=folder)
    process.wait()
    return process


def test_a_seventh_method_trains_continues_and_is_evaluated(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (4, 1, 1, 3))
    labels = rng.integers(0, 4, 240)
    pictures = np.clip(colours[labels] + rng.integers(-20, 20, (240, 16, 16, 3)), 0, 255).astype(np.uint8)
    for part in ("train", "val"):
        np.savez(tmp_path / f"{part}.npz", images=pictures, labels=labels)
    options = [
        "--method",
        "simclr.SimCLR",
        "--method.backbone",
        "resnet10t",
        "--method.backbone_args",
        "{channels: [8, 8, 16, 16]}",
    ]
    options += ["--batch_size", "80", "--epochs", "3", "--accelerator", "cpu", "--out", "run"]
    arguments = ["pretrain", "train.npz", *options, "--hierarchy.levels", "8", "2", "--hierarchy.start_epoch", "1"]
    trained = hirl(*arguments, folder=tmp_path)
    assert trained.wait() == 0, trained.errors
    assert "SimCLR on 240 images" in trained.output
    assert "is finished" in hirl(*arguments, folder=tmp_path).output
    scored = hirl("evaluate", "run", "knn", "--test_data", "val.npz", "--knn.ks", "10", folder=tmp_path)
    assert scored.wait() == 0, scored.errors
    written = hirl("embed", "run", "--out", "z.npz", folder=tmp_path)
    assert "name the class yourself, with --method simclr.SimCLR" in written.errors  # a file must not name code
    written = hirl("embed", "run", "--method", "simclr.SimCLR", "--out", "z.npz", folder=tmp_path)
    assert written.wait() == 0, written.errors
    z = np.load(tmp_path / "z.npz")
    assert z["z2"].shape == (240, 128)


def test_the_loss_of_the_seventh_method_against_a_slow_one() -> None:
    spec = importlib.util.spec_from_file_location("simclr", EXAMPLES / "simclr.py")
    assert spec is not None
    assert spec.loader is not None
    simclr = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(simclr)
    first, second = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)).unbind()
    views = [row / row.norm() for row in (*first, *second)]
    terms = []
    for place, view in enumerate(views):
        partner = (place + 5) % 10
        others = [torch.exp(view @ other / 0.2) for at, other in enumerate(views) if at != place]
        terms.append(-torch.log(torch.exp(view @ views[partner] / 0.2) / sum(others)))
    torch.testing.assert_close(simclr.contrast(first, second, 0.2), torch.stack(terms).mean())
