"""Stop signals: a run that is asked to stop saves its state first."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGTERM or SIGINT has come; a second signal ends the process at once."""
    asked = False
    previous = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)}

    def note(kind: int, _frame: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(kind, previous[signal.Signals(kind)])

    for kind in previous:
        signal.signal(kind, note)
    try:
        yield lambda: asked
    finally:
        for kind, handler in previous.items():
            signal.signal(kind, handler)
