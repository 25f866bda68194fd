"""Stop signals: a command that is asked to stop saves its state first, and the workers that read for it outlive them.

SIGTERM is what `timeout` and schedulers send, SIGINT is Ctrl-C, SIGUSR1 is SLURM's usual warning before a requeue. Each
may go to one process or to all of a group.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

T = TypeVar("T")
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ONE_REQUEST = 3.0  # seconds: torchrun and srun pass on a signal that the group has had already


class Stopped(Exception):  # noqa: N818 - not an error: the user asked for it
    """The command was asked to stop and has saved its state."""


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether a stop signal has come; one that comes later ends the process at once."""
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield lambda: False
        return
    first: float | None = None
    previous = {kind: signal.getsignal(kind) for kind in STOPS}

    def note(kind: int, _frame: object) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
        elif time.monotonic() - first > ONE_REQUEST:
            signal.signal(kind, previous[signal.Signals(kind)])
            os.kill(os.getpid(), kind)

    for kind in previous:
        signal.signal(kind, note)
    try:
        yield lambda: first is not None
    finally:
        for kind, handler in previous.items():
            signal.signal(kind, handler)


def shielded(loader: DataLoader[T]) -> Iterator[T]:
    """Iterate over a loader whose workers ignore stop signals: the parent decides when they stop."""
    loader.worker_init_fn = _obey_parent
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # workers inherit it from their first moment on
    try:
        return iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _obey_parent(_worker: int) -> None:
    """Let the parent still end this worker, which it does by SIGTERM. The sender is known on Linux alone."""
    if hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=_await_parent, daemon=True).start()
    else:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _await_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
