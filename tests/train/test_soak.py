"""A thousand tiny epochs, each with its own tree: memory, open files and speed stay where they are."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import yaml

EPOCHS = 1000
CONFIG = {
    "method": {
        "class_path": "hirl.methods.MoCoV2",
        "init_args": {
            "backbone": "resnet10t",
            "backbone_args": {"channels": [8, 8, 16, 16]},
            "dim": 16,
            "queue_length": 200,
            "bn_splits": 2,
            "lr": 0.001,
        },
    },
    "hierarchy": {"levels": [12, 4], "negatives": 5, "start_epoch": 1},
    "epochs": EPOCHS,
    "batch_size": 100,
    "accelerator": "cpu",
    "knn_every": 50,
}


def epochs_done(metrics: Path) -> float:
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return json.loads(lines[-2])["epoch"] if len(lines) > 1 else 0.0


@pytest.mark.long
def test_memory_files_and_speed_stay_flat(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (300, 16, 16, 3), dtype=np.uint8), rng.integers(0, 3, 300)
    np.savez(tmp_path / "images.npz", images=images, labels=labels)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    arguments = ["pretrain", str(tmp_path / "images.npz"), "--config", str(tmp_path / "config.yaml")]
    command = [sys.executable, "-m", "hirl.cli.main", *arguments, "--out", str(tmp_path / "run")]
    with (tmp_path / "output.txt").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    samples: list[tuple[float, float, int, int]] = []  # seconds, epoch, KiB, open files
    start = time.monotonic()
    while process.poll() is None:
        time.sleep(0.5)
        epoch = epochs_done(tmp_path / "run" / "metrics.jsonl")
        status = Path(f"/proc/{process.pid}/status")
        if epoch < EPOCHS * 0.9 and status.exists():
            held = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmRSS"))
            opened = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
            samples.append((time.monotonic() - start, epoch, held, opened))
    assert process.returncode == 0, (tmp_path / "output.txt").read_text()[-2000:]

    def between(low: float, high: float) -> list[tuple[float, float, int, int]]:
        return [sample for sample in samples if EPOCHS * low <= sample[1] < EPOCHS * high]

    early, late = between(0.2, 0.4), between(0.7, 0.9)
    rates = [(part[-1][1] - part[0][1]) / (part[-1][0] - part[0][0]) for part in (early, late)]
    memory = [median(sample[2] for sample in part) / 1024 for part in (early, late)]
    files = [max(sample[3] for sample in part) for part in (early, late)]
    print(f"epochs a second {rates}, MiB {memory}, open files {files}")
    assert memory[1] < memory[0] * 1.02 + 5
    assert files[1] <= files[0] + 1
    assert rates[1] > 0.7 * rates[0]
