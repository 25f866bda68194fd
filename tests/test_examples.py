"""The examples run as their heads say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_loop_of_ones_own_gains_a_tree() -> None:
    command = [sys.executable, str(EXAMPLES / "own_loop.py"), "--epochs", "3", "--start-epoch", "1"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert "loss_spd 0.000" in lines[0]
    assert "loss_spd 0.000" not in lines[2]
    assert lines[-1].startswith("level 2: 10 nodes")
