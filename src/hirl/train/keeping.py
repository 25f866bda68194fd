"""What a run writes, and when: current state, permanent checkpoints, tree."""

from __future__ import annotations

from typing import Any

from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Plan
from hirl.run import Run
from hirl.runs.checkpoint import save_checkpoint


class Store:
    """Stores the state and the tree of a loop; called on the first process only. This base class stores nothing."""

    save_every = float("inf")  # seconds
    keeps_bank = False  # whether a baseline keeps a bank, for HIRL runs that start from its stage one

    def save_state(self, state: dict[str, Any]) -> None: ...
    def save_tree(self, tree: PrototypeTree) -> None: ...


class RunStore(Store):
    """The run's folder; the other arguments are those of `hirl.pretrain`."""

    def __init__(
        self, run: Run, plan: Plan, *, checkpoint_minutes: float, keep_every: int, fork_at: tuple[int, ...]
    ) -> None:
        self.run, self.plan, self.keep_every, self.fork_at = run, plan, keep_every, fork_at
        self.save_every = checkpoint_minutes * 60
        self.keeps_bank = bool(fork_at)

    def save_state(self, state: dict[str, Any]) -> None:
        """Write last.ckpt and permanent checkpoints: those of every `keep_every` epochs and of the epochs in `fork_at`.

        last.ckpt is written last: a run killed before that repeats the epoch and writes the others again.
        """
        run, every = self.run, self.keep_every
        epoch, rest = divmod(state["step"], self.plan.steps_per_epoch)
        kept = {"epoch": every and epoch % every == 0, "fork": epoch in self.fork_at and state["bank"]}
        for name, keep in kept.items():
            if keep and not rest:
                run.checkpoints_folder.mkdir(exist_ok=True)
                save_checkpoint(run.checkpoints_folder / f"{name}-{epoch:04d}.ckpt", state)
        save_checkpoint(run.checkpoint_file, state)
        if not run.saved:
            run.report({"step": state["step"], "epoch": state["step"] / self.plan.steps_per_epoch, "saved": True})

    def save_tree(self, tree: PrototypeTree) -> None:
        tree.save(self.run.tree_file)
