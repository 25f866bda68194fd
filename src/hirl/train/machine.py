"""The machine that a run trains on: type of device, cores and memory."""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from hirl.data.loader import available_cores

GB = 10**9
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """One device of a machine. On a CPU the memory is that of the machine, on a GPU that of the device."""

    device: str  # cpu, cuda or mps
    cores: int
    memory: int  # bytes
    free: int  # bytes

    def __str__(self) -> str:
        if self.device == "cuda":
            return f"a GPU with {size_text(self.memory)} of memory"
        cores = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        return (
            f"{'a CPU' if self.device == 'cpu' else 'an Apple GPU'} with {cores} and {size_text(self.memory)} of memory"
        )


def read_machine(accelerator: str = "auto") -> Machine:
    """The machine as it is now, with the device that a run with this `accelerator` would use."""
    device = accelerator
    if accelerator == "auto":
        has_mps = torch.backends.mps.is_available()
        device = "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    if device == "cuda" and torch.cuda.is_available():
        free, memory = torch.cuda.mem_get_info()
    else:
        free, memory = _host_memory()
    cores = min(available_cores(), torch.get_num_threads())  # OMP_NUM_THREADS limits threads
    return Machine(device, cores, memory, free)


def used_memory(device: str) -> int:
    """Peak memory of this process in bytes, on the GPU or the machine, without the processes that read its images."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def size_text(count: float) -> str:
    """Bytes as people read them: `640 MB`, `1.3 GB`, `23 GB`."""
    if count < GB:
        return f"{count / 1e6:.0f} MB"
    return f"{count / GB:.1f} GB" if count < 10 * GB else f"{count / GB:.0f} GB"


def _host_memory() -> tuple[int, int]:
    """Free and total bytes, within the limits of a container."""
    total = free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if (meminfo := Path("/proc/meminfo")).is_file():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    limit, used = (_number(CGROUP / name) for name in ("memory.max", "memory.current"))
    if limit is not None and limit < total:
        total, free = limit, min(free, max(0, limit - (used or 0) + _evictable()))
    return free, total


def _evictable() -> int:
    """Bytes of the container's page cache, which the kernel counts as used but frees when memory is short."""
    file = CGROUP / "memory.stat"
    lines = file.read_text().splitlines() if file.is_file() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _number(file: Path) -> int | None:
    """The number in a file of the kernel; None if there is no such file, or if it says there is no limit."""
    text = file.read_text().strip() if file.is_file() else ""
    return int(text) if text.isdigit() else None
