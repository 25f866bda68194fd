"""The environment of processes that import Lightning."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def with_lightning() -> dict[str, str]:
    """As here, but with torchmetrics, which Lightning needs and the other tests save the time for."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if not path.endswith("stand_ins"))}
