"""Start HIRL from a baseline's stage one, which is trained only once: until the first tree both arms are bit-identical.

Heads are not trained in stage one: they keep their initial weights, and the optimiser has no state for them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hirl.run import Run
from hirl.runs.stored import is_complete
from hirl.train.job import Job


def add_heads(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a HIRL run after stage one: the baseline's, with the heads of the run's `own` initial state.

    The method's parameter groups come before those of the heads, so the indices of the optimiser's states stay valid.
    """
    groups = base["optimiser"]["param_groups"]
    groups = [*groups, *own["optimiser"]["param_groups"][len(groups) :]]
    return base | {
        "levels": own["levels"],
        "joint": own["joint"] | base["joint"],
        "optimiser": base["optimiser"] | {"param_groups": groups},
    }


def adopt_stage_one(job: Job, base: Run, state: dict[str, Any]) -> None:
    """Make stage one of the baseline, whose state has been loaded and saved, part of the run, with its reports."""
    if job.is_first:
        for line in base.metrics():
            if line["step"] <= state["step"] and not line.get("finished"):
                job.run.report(line)
    job.announce(f"stage one up to epoch {state['step'] // state['plan']['steps_per_epoch']} is that of {base.folder}")


def missing_forks_message(run: Run, state: dict[str, Any] | None, fork_at: Collection[int]) -> str | None:
    """A message on the epochs of `fork_at` that a continued run has already passed unsaved; None if there are none."""
    if not fork_at or (state is None and not is_complete(run)):
        return None
    done = run.config["epochs"] if state is None else state["step"] // state["plan"]["steps_per_epoch"]
    began_with_bank = state is not None and bool(state["bank"])
    lost = [
        epoch
        for epoch in sorted(fork_at)
        if (epoch <= done or not began_with_bank) and not (run.checkpoints_folder / f"fork-{epoch:04d}.ckpt").is_file()
    ]
    if not lost:
        return None
    epochs = ", ".join(map(str, lost))
    return (
        f"{run.folder} has no state of epoch {epochs}, which has passed: give fork_at when the run starts; "
        "HIRL runs train their own stage one, or start from an earlier state"
    )
