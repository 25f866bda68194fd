"""Valid ranges of the methods' numeric arguments: each name has the same range in every method."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hirl.methods.base import Method

AT_LEAST = {
    "dim": 1, "hidden": 1, "predictor_hidden": 1, "prototypes": 2, "iterations": 1, "local_crops": 0, "local_size": 1,
    "queue_epoch": 0, "frozen_epochs": 0, "warmup_epochs": 0, "teacher_temperature_epochs": 0, "lr": 0, "start_lr": 0,
    "final_lr": 0, "weight_decay": 0, "final_weight_decay": 0,
}  # fmt: skip
ABOVE_0 = {"temperature", "student_temperature", "teacher_temperature", "teacher_temperature_start", "clip"}
FRACTIONS = {"momentum", "sgd_momentum", "centre_momentum", "teacher_momentum"}
PACKAGE = f"{__package__}."


def check_ranges(method: Method) -> None:
    """Raise ValueError for the first argument out of range. None is left to the method to check.

    Arguments of classes outside the package are not checked: there a name may mean anything.
    """
    packaged = next(kind for kind in type(method).__mro__ if kind.__module__.startswith(PACKAGE))
    for name in inspect.signature(packaged).parameters:
        value = getattr(method, name, None)
        if value is None or name not in AT_LEAST.keys() | ABOVE_0 | FRACTIONS:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is {value!r}, but must be a number")
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}, but must be a finite number")
        if name in AT_LEAST and value < AT_LEAST[name]:
            raise ValueError(f"{name} is {value}, but must be at least {AT_LEAST[name]}")
        if name in ABOVE_0 and value <= 0:
            raise ValueError(f"{name} is {value}, but must be above 0")
        if name in FRACTIONS and not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}, but must be between 0 and 1")
