"""Being asked to stop: the run writes its state first."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM or SIGINT came; a second one ends the process at once."""
    asked = False
    kept = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)}

    def note(kind: int, _frame: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(kind, kept[signal.Signals(kind)])

    for kind in kept:
        signal.signal(kind, note)
    try:
        yield lambda: asked
    finally:
        for kind, handler in kept.items():
            signal.signal(kind, handler)
