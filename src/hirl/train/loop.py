"""Alg. 2: stage one with L_img, then an epoch's tree and the joint loss, from any step on.

The loop is our own on Lightning's Fabric, which brings devices, processes and precision, rather than Lightning's
Trainer: what a step changes is one dictionary, and everything else is a function of (seed, step). So a run that is
killed anywhere and continued ends in the same bits, which the Trainer's mid-epoch restarts do not promise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import Tensor

from hirl.data.loader import EvaluationLoader, Loader
from hirl.data.views.render import Batch
from hirl.hierarchy.kmeans import TreeProgress
from hirl.hierarchy.paths import SemanticPaths
from hirl.hierarchy.ranks import Ranks
from hirl.hierarchy.settings import Hierarchy
from hirl.methods.base import Method, Plan
from hirl.seeds import mix_seed
from hirl.train.bank import Bank, embedded
from hirl.train.joint import Joint, Losses

# Streams of random numbers that must not meet.
NETWORKS, HEADS, FORWARD, NEGATIVES, KMEANS = range(5)
LOOK_EVERY = 20  # steps between what would make a GPU or other processes wait
SAMPLE = 2048  # z⁰ of an epoch that the watch looks at


class Observer(Protocol):
    """Who is told how the run goes; only the first process has one that speaks."""

    def stepped(self, step: int, losses: Losses, rates: dict[str, float], images: int, waited: float) -> None: ...
    def refreshing(self, epoch: int) -> TreeProgress | None: ...
    def refreshed(self, epoch: int, seconds: dict[str, float], paths: SemanticPaths) -> None: ...
    def epoch_ended(self, epoch: int, step: int, sample: list[Tensor]) -> None: ...


class NotFinite(Exception):  # noqa: N818
    """The loss is NaN or infinite: the step and the images of its batch."""

    def __init__(self, step: int, loss: float, index: Tensor) -> None:
        super().__init__(step, loss)
        self.step, self.loss, self.index = step, loss, index


class Stopped(Exception):  # noqa: N818 - it is no error: somebody asked for it
    """The run was asked to stop and has written its state."""


@dataclass
class Loop:
    """One run of Alg. 2. `fit` goes on from `step`, which `load_state_dict` may have set."""

    fabric: Fabric
    method: Method
    paths: SemanticPaths | None
    hierarchy: Hierarchy | None
    plan: Plan
    loader: Loader
    whole: EvaluationLoader  # this process's share of all images, shown whole
    N: int
    seed: int
    observer: Observer
    save: Callable[[dict[str, Any]], None]
    accumulate: int = 1
    save_every: float = 600.0
    should_stop: Callable[[], bool] = lambda: False
    step: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.ranks = Ranks(dist.group.WORLD if self.fabric.world_size > 1 else None)
        assign = "stored" if self.hierarchy is None else self.hierarchy.assign
        self.joint = Joint(self.method, self.paths, assign=assign)
        groups = [group | {"of": "method"} for group in self.method.param_groups(self.method)]
        if self.paths is not None:
            groups += [group | {"of": "heads"} for group in self.method.param_groups(self.paths)]
        optimiser = self.method.optimiser(groups)
        self.module, self.optimiser = self.fabric.setup(self.joint, optimiser)
        self.bank = None
        if self.hierarchy is not None and self.hierarchy.features == "bank":
            self.bank = Bank(self.N, self.method.dim)
        self._saved = time.monotonic()
        self._sample: list[Tensor] = []

    def fit(self) -> None:
        while self.step < self.plan.steps:
            self.fit_epoch()
            self._save()

    def fit_epoch(self) -> None:
        """The epoch the run stands in, or what is left of it, from its tree on."""
        self.module.train()
        epoch, done = divmod(self.step, self.plan.steps_per_epoch)
        if done == 0:
            self._refresh(epoch)
        self.loader.set_epoch(epoch, done * self.accumulate)
        waited = self.loader.waited
        for parts in _grouped(self.loader, self.accumulate):
            losses = self._step(parts, epoch)
            self.step += 1
            images = sum(len(part) for part in parts) * self.fabric.world_size
            self.observer.stepped(self.step, losses, self._rates, images, self.loader.waited - waited)
            waited = self.loader.waited
            self._save_if_due()
            if self.step % self.plan.steps_per_epoch == 0:
                break
        self.observer.epoch_ended(epoch, self.step, self._sample)
        self._sample = []

    def _step(self, parts: list[Batch], epoch: int) -> Losses:
        # Drop path and the like draw from torch's own generator.
        torch.manual_seed(mix_seed(self.seed, FORWARD, self.step))
        self._rates = self._set_rates()
        losses: Losses | None = None
        for place, part in enumerate(parts):
            with self.fabric.no_backward_sync(self.module, enabled=place + 1 < len(parts)):
                seed = mix_seed(self.seed, NEGATIVES, self.step, place)
                losses = self.module(part.views, part.masks, part.index, self.step, seed)
                # Before the step, so that no weight is touched; a GPU is not made to wait for every single one.
                if self.fabric.device.type == "cpu" or self.step % LOOK_EVERY == 0:
                    self._look(losses, part)
                self.fabric.backward(losses.total / len(parts))
            if self.bank is not None:
                self.bank.collect(part.index, losses.target_z0, epoch)
            if sum(map(len, self._sample)) < SAMPLE:
                self._sample.append(losses.z0.float().cpu())
        assert losses is not None
        if self.paths is not None and self.paths.tree is None:
            for parameter in self.paths.parameters():  # lr 0 until there is a tree, and no trace in the optimiser
                parameter.grad = None
        self.method.before_update(self.step)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.method.after_step(self.step)
        return losses

    def _look(self, losses: Losses, batch: Batch) -> None:
        if not losses.total.isfinite():
            raise NotFinite(self.step, float(losses.total.detach()), batch.index.cpu())

    def _set_rates(self) -> dict[str, float]:
        rates, peak = self.method.rates(self.step), self.method.peak_lr
        for group in self.optimiser.param_groups:
            group["lr"] = (peak if group.get("fixed_lr") else rates.lr) * group.get("lr_scale", 1.0)
            group["weight_decay"] = rates.weight_decay * group.get("wd_scale", 1.0)
        return {"lr": rates.lr, "weight_decay": rates.weight_decay}

    def _refresh(self, epoch: int) -> None:
        """A new tree for this epoch, in stage two."""
        paths, hierarchy = self.paths, self.hierarchy
        if paths is None or hierarchy is None or epoch < hierarchy.start_for(self.plan.epochs):
            return
        start = time.perf_counter()
        progress = self.observer.refreshing(epoch)
        if self.bank is None or self.bank.missing(self.ranks):
            features = embedded(self.method, self.whole)
            index = torch.from_numpy(self.whole.indices)
            if self.bank is not None:
                # The bank takes the pass as one more epoch's, so that the images it lacked keep a feature from now on.
                self.bank.collect(index, features, epoch - 1)
        if self.bank is not None:
            index = self.bank.own(self.ranks)
            features = self.bank.features[index]
        embedding = time.perf_counter()
        paths.refresh(
            features.to(self.fabric.device),
            index=index,
            seed=mix_seed(self.seed, KMEANS, epoch),
            group=self.ranks.group,
            progress=progress,
        )
        seconds = {"features": embedding - start, "kmeans": time.perf_counter() - embedding}
        self.observer.refreshed(epoch, seconds, paths)

    def state_dict(self) -> dict[str, Any]:
        """Everything a step changes; the same on every process."""
        return {
            "step": self.step,
            "joint": self.joint.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "bank": {} if self.bank is None else self.bank.state_dict(self.ranks),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.joint.load_state_dict(state["joint"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.bank is not None:
            self.bank.load_state_dict(state["bank"], self.ranks)
        self.step = state["step"]

    def _save_if_due(self) -> None:
        if self.ranks.size > 1 and self.step % LOOK_EVERY:  # to agree takes a message, so not after every step
            return
        due = time.monotonic() - self._saved > self.save_every
        stop, due = self.ranks.max(torch.tensor([float(self.should_stop()), float(due)])).bool().tolist()
        if stop or due:
            self._save()
        if stop:
            raise Stopped

    def _save(self) -> None:
        state = self.state_dict()  # on every process, for the bank is gathered
        if self.fabric.is_global_zero:
            self.save(state)
        self._saved = time.monotonic()


def _grouped(batches: Iterable[Batch], size: int) -> Iterable[list[Batch]]:
    """Consecutive batches by `size`; what is left over at the end is dropped."""
    parts: list[Batch] = []
    for batch in batches:
        parts.append(batch)
        if len(parts) == size:
            yield parts
            parts = []
