"""Freed memory stays with the process."""

import subprocess
import sys

import pytest

from hirl import freed_memory

COUNT = """
import resource, runpy, sys
import numpy as np
if sys.argv[1] == "keep":
    runpy.run_path(sys.argv[2])["keep_freed_memory"]()
def fill():
    for _ in range(10):
        np.ones(8_000_000)  # 64 MB: 15,625 pages of 4 KiB
fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_memory_is_used_again() -> None:
    def faults(mode: str) -> int:
        command = [sys.executable, "-c", COUNT, mode, freed_memory.__file__]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults("keep") < 100
    assert faults("return") > 100
