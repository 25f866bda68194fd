"""Freed memory is kept for the next tensors: on a CPU, re-acquiring it took half the time of a forward pass.

By default, the C library on Linux returns large freed blocks to the system at once. The next tensor of that size then
gets pages that the system has to clear first, one by one, in every layer of a network.
"""

from __future__ import annotations

import ctypes
import os
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
MOST_KEPT = 1 << 30  # bytes that stay with the process after they are freed
USERS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
LARGEST_KEPT = (256 << 20, 32 << 20)  # larger blocks go back to the system as before; the second for older versions


def keep_freed_memory() -> None:
    """Keep up to 1 GiB of freed memory in this process; does nothing where the C library is not glibc.

    Commands call it, and in Python `hirl.pretrain`, `hirl.evaluate` and what else takes features of many images:
    importing hirl changes nothing. Settings of the user's own stay.
    """
    if sys.platform != "linux" or any(name in os.environ for name in USERS_OWN):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Setting the one alone would fix the other at its start, where every tensor goes back to the system.
    if mallopt is not None and any(mallopt(MMAP_THRESHOLD, size) for size in LARGEST_KEPT):
        mallopt(TRIM_THRESHOLD, MOST_KEPT)
