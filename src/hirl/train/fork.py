"""HIRL from a baseline's stage one. Until the first tree both arms are equal to the bit, so it is trained only once.

The heads do not take part in stage one: they keep their first weights, and the optimiser has no state for them.
"""

from __future__ import annotations

from typing import Any

from hirl.runs.folder import Run


def with_heads(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a HIRL run after stage one: the baseline's, with the heads of the run's `own` first state.

    Parameter groups of the method come before those of the heads, so that the numbers of the optimiser's states hold.
    """
    groups = base["optimiser"]["param_groups"]
    groups = [*groups, *own["optimiser"]["param_groups"][len(groups) :]]
    return base | {
        "levels": own["levels"],
        "joint": own["joint"] | base["joint"],
        "optimiser": base["optimiser"] | {"param_groups": groups},
    }


def copy_reports(base: Run, run: Run, step: int) -> None:
    """Give the run the baseline's reports of stage one, as if it had trained it."""
    for line in base.metrics():
        if line["step"] <= step and not line.get("finished"):
            run.report(line)
