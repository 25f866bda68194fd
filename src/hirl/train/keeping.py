"""What a run writes to its folder during training, and when: its state, states that are kept, and its tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Plan
from hirl.run import Run
from hirl.runs.checkpoint import save_checkpoint


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Which states of a run are kept, as `hirl.pretrain` describes."""

    checkpoint_minutes: float
    keep_every: int
    fork_at: tuple[int, ...]


class Store:
    """Stores the state and the tree of a loop; called on the first process only. This base class stores nothing."""

    save_every = float("inf")  # seconds
    keeps_bank = False  # whether a baseline keeps a bank, for HIRL runs that start from its stage one

    def save_state(self, state: dict[str, Any]) -> None: ...
    def save_tree(self, tree: PrototypeTree) -> None: ...


class RunStore(Store):
    """The run's folder."""

    def __init__(self, run: Run, plan: Plan, keeping: Keeping) -> None:
        self.run, self.plan, self.keeping = run, plan, keeping
        self.save_every = keeping.checkpoint_minutes * 60
        self.keeps_bank = bool(keeping.fork_at)

    def save_state(self, state: dict[str, Any]) -> None:
        """Write last.ckpt and permanent checkpoints: those of every `keep_every` epochs and of the epochs in `fork_at`.

        last.ckpt is written last: a run killed before that repeats the epoch and writes the others again.
        """
        run, every = self.run, self.keeping.keep_every
        epoch, rest = divmod(state["step"], self.plan.steps_per_epoch)
        kept = {"epoch": every and epoch % every == 0, "fork": epoch in self.keeping.fork_at and state["bank"]}
        for name, keep in kept.items():
            if keep and not rest:
                run.checkpoints_folder.mkdir(exist_ok=True)
                save_checkpoint(run.checkpoints_folder / f"{name}-{epoch:04d}.ckpt", state)
        save_checkpoint(run.checkpoint_file, state)
        if not run.saved:
            run.report({"step": state["step"], "epoch": state["step"] / self.plan.steps_per_epoch, "saved": True})

    def save_tree(self, tree: PrototypeTree) -> None:
        tree.save(self.run.tree_file)
