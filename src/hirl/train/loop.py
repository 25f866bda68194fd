"""Alg. 2: stage one trains with L_img; from epoch T₁ on, each epoch builds a tree and trains with the joint loss.

The loop is our own, on Lightning's Fabric, which provides devices, processes and precision, rather than Lightning's
Trainer: everything a step changes is one dictionary (`Loop.state_dict`), and everything else is a function of
(seed, step). So a run that is killed anywhere and continued ends in the same bits, which the Trainer does not promise
for a restart within an epoch.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from hirl import ranks
from hirl.data.loader import EvaluationLoader, Loader
from hirl.data.views.render import Batch
from hirl.features.forward_pass import collected_outputs
from hirl.features.view_cache import PlainFeatures
from hirl.hierarchy.lloyd import TooFewDirections
from hirl.hierarchy.paths import SemanticPaths
from hirl.hierarchy.settings import ResolvedHierarchy
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Method, Plan
from hirl.runs import metrics
from hirl.runs.representations import clustered_by
from hirl.seeds import Stream, mix_seed
from hirl.signals import Stopped
from hirl.train.bank import Bank
from hirl.train.diagnostics import bank_agreement
from hirl.train.feature_loader import FeatureLoader
from hirl.train.fork import with_heads
from hirl.train.joint import Joint, Losses, mean_losses
from hirl.train.loss_scale import LossScale
from hirl.train.means import Means
from hirl.train.observer import Observer, Rates
from hirl.train.partners import partner_nodes

SYNC_EVERY = 20  # steps between checks that make a GPU or other processes wait
AT_ONCE = ("cpu",)  # devices on which a value can be read without a wait for the steps before it
SAMPLE_SIZE = 2048  # images per epoch whose z⁰ is checked for collapse
DIAGNOSED = 8  # steps per epoch whose gradients are compared


class NotFinite(Exception):  # noqa: N818
    """The loss is NaN or infinite: the step, the loss and the images of the batch; raised on every process."""

    def __init__(self, step: int, loss: float, index: Tensor) -> None:
        super().__init__(step, loss)
        self.step, self.loss, self.index = step, loss, index


@dataclass
class Loop:
    """One run of Alg. 2. `fit` goes on from `step`, which `load_state_dict` may have set.

    `save_state` and `save_tree` are called on the first process only.
    """

    fabric: Fabric
    method: Method
    paths: SemanticPaths | None
    hierarchy: ResolvedHierarchy | None
    plan: Plan
    loader: Loader | FeatureLoader
    evaluation_loader: EvaluationLoader | PlainFeatures  # this process's share of all images, uncropped
    N: int
    seed: int
    observer: Observer
    save_state: Callable[[dict[str, Any]], None]
    save_tree: Callable[[PrototypeTree], None]
    accumulate: int = 1
    keep_bank: bool = False  # also for a baseline, for HIRL runs that start from its stage one
    save_every: float = 600.0  # seconds
    should_stop: Callable[[], bool] = lambda: False
    step: int = field(default=0, init=False)
    finished: bool = field(default=False, init=False)  # whether the tree is that of the trained encoder
    training_tree: dict[str, Tensor] = field(default_factory=dict, init=False)  # the last epoch's, once `finished`

    def __post_init__(self) -> None:
        self.ranks = ranks.world()
        self.joint = Joint(
            self.method, self.paths, assign="stored" if self.hierarchy is None else self.hierarchy.assign
        )
        groups = [group | {"of": "method"} for group in self.method.param_groups(self.method)]
        if self.paths is not None:
            heads = self.method.param_groups(self.paths) if self.paths.head_layers else []
            groups += [group | {"of": "heads"} for group in heads]
        optimiser = self.method.optimiser(groups)
        self.module, self.optimiser = self.fabric.setup(self.joint, optimiser)
        self.loss_scale = LossScale(self.fabric, self.joint, optimiser)
        self.bank = None
        if self.keep_bank or (self.hierarchy is not None and self.hierarchy.features == "bank"):
            momentum = 0.0 if self.hierarchy is None else self.hierarchy.bank_momentum
            self.bank = Bank(self.N, self.method.dim, momentum=momentum)
        self._last_save = time.monotonic()
        self._means = Means()  # of this epoch so far
        self._sample: list[Tensor] = []  # z⁰ of some batches of this epoch
        self._unchecked: list[tuple[int, Tensor, Tensor]] = []  # step, loss and images since the last check

    def fit(self) -> None:
        """Train to the end, saving the state after every epoch, and build the tree of the trained encoder."""
        while self.step < self.plan.steps:
            self.fit_epoch()
            self.save()
            if self._agreed(self.should_stop()):
                raise Stopped
        self.finish()

    def finish(self) -> None:
        """Build the run's final tree over z⁰ of all images, uncropped, by the trained encoder.

        From then on `tree.assign` gives z⁰ of the same images the same leaves. A run that is killed here
        has saved its last step, and builds the same tree from it again.
        """
        if self.paths is None:
            return
        if not self.finished:
            self.training_tree = self.paths.get_extra_state()  # the one that the heads were trained with
            self._build_tree(self.plan.epochs)
            self.finished = True
            self.save()
        elif self.fabric.is_global_zero and self.paths.tree is not None:  # killed after the state was saved
            self.save_tree(self.paths.tree)

    def fit_epoch(self) -> None:
        """Train the current epoch, or the rest of it; in stage two it begins with a new tree."""
        self.module.train()
        epoch, done = divmod(self.step, self.plan.steps_per_epoch)
        if done == 0 and self.hierarchy is not None and epoch >= self.hierarchy.start_epoch:
            self._build_tree(epoch)
        tree = None if self.paths is None else self.paths.tree
        if isinstance(self.loader, FeatureLoader) and tree is not None:
            self.loader.restrict_partners(partner_nodes(tree))
        self.loader.set_epoch(epoch, done * self.accumulate)
        waited = self.loader.waited
        for parts in _grouped(self.loader, self.accumulate):
            figures = self._step(parts)
            self.step += 1
            images = sum(len(part) for part in parts) * self.fabric.world_size
            self.observer.on_step(self.step, figures, self._rates, images, self.loader.waited - waited)
            waited = self.loader.waited
            if self.step % self.plan.steps_per_epoch == 0:
                break  # `fit` saves, after the report of the epoch: a run continued from before it would leave it out
            self._save_if_due()
        self._check_finite()
        self.observer.on_epoch_end(epoch, self.step, self._means.take(), [z0.cpu() for z0 in self._sample])
        self._sample = []

    def _build_tree(self, epoch: int) -> None:
        """Build the tree of this epoch, or after the last one the final tree, over all readable images."""
        assert self.paths is not None
        assert self.hierarchy is not None
        start = time.perf_counter()
        report = self.observer.on_tree_start(epoch)

        def progress(*figures: int) -> None:
            self._stop_before_tree()
            if report is not None:
                report(*figures)

        final = epoch == self.plan.epochs
        index, features = self._embed_all() if final else self._features()
        features = features.to(self.fabric.device)
        rows: dict[str, Any] = {"index": index, "images": self.N, "group": self.ranks.group}
        seed = mix_seed(self.seed, Stream.KMEANS, epoch)
        embedded = time.perf_counter()
        try:
            if final or self.hierarchy.rebuild or self.paths.tree is None:
                tree = self.paths.refresh(features, seed=seed, progress=progress, anew=final, **rows)
            else:
                tree = self.paths.follow(features, index=index, group=self.ranks.group)
        except ValueError as error:
            if not (final or isinstance(error, TooFewDirections)):  # which an encoder may recover from
                raise
            tree_kept = self.paths.tree is not None
            if self.fabric.is_global_zero:
                name = "the finished run" if final else f"epoch {epoch + 1}"
                kept = "keeps the prototypes of the last tree" if tree_kept else "has no tree"
                warnings.warn(f"{name} {kept}: {error}", stacklevel=2)
            if not (final and tree_kept):
                return
        if final:  # whatever the builder: a later look at the same images gives the same leaves
            tree = self.paths.reassign(features, **rows)
        seconds = {
            metrics.SECONDS_FEATURES.name: embedded - start,
            metrics.SECONDS_KMEANS.name: time.perf_counter() - embedded,
        }
        if self.fabric.is_global_zero:
            self.save_tree(tree)
        agreement = {}
        if self.bank is not None and not final:
            compared = time.perf_counter()
            agreement = bank_agreement(tree, self.method, self.evaluation_loader, self.ranks)
            seconds[metrics.SECONDS_AGREEMENT.name] = time.perf_counter() - compared
        self.observer.on_tree_built(epoch, seconds, tree, agreement)

    def _features(self) -> tuple[Tensor, Tensor]:
        """Return this process's images (n,) and their z⁰ (n, D), from the bank or from a pass over all images."""
        if self.bank is None:
            return self._embed_all()
        if self.bank.missing(self.ranks):  # so that images that no epoch has included have a feature from now on
            self.bank.replace(*self._embed_all(), self.step, self.ranks)
        return self.bank.to_cluster(self.ranks)

    def _embed_all(self) -> tuple[Tensor, Tensor]:
        """Return this process's share (n,) of all readable images and their z⁰ (n, D), uncropped and in eval mode."""
        return collected_outputs(self.method, self.evaluation_loader, apply=self._embed)

    def _embed(self, images: Tensor) -> Tensor:
        self._stop_before_tree()
        return clustered_by(self.method, self.paths)(images)

    def _stop_before_tree(self) -> None:
        """A tree is built after a step that has been saved: one process can stop there at once."""
        if self.ranks.size == 1 and self.should_stop():
            raise Stopped

    def _step(self, parts: list[Batch]) -> dict[str, Tensor]:
        """Take one step and return the figures of its batch, over all parts and processes.

        A step whose gradients overflow in half precision changes nothing but the scale of the next loss.
        """
        # Drop path and the like draw from torch's global generator.
        torch.manual_seed(mix_seed(self.seed, Stream.FORWARD, self.step))
        self._rates: Rates = {**self._set_rates(), **self.loss_scale.figures()}
        self.loss_scale.begin()
        found: list[Losses] = []
        diagnose = self.step % max(1, self.plan.steps_per_epoch // DIAGNOSED) == 0
        for place, part in enumerate(parts):
            with self.fabric.no_backward_sync(self.module, enabled=place + 1 < len(parts)):
                seed = mix_seed(self.seed, Stream.NEGATIVES, self.step, place)
                losses = self.module(part.views, part.masks, part.index, self.step, seed, diagnose=diagnose)
                self._unchecked.append((self.step, losses.total.detach(), part.index))
                # Before the update, so that no weight is touched; a GPU is not made to wait at every step.
                due = self.step % SYNC_EVERY == 0 and place + 1 == len(parts)
                if due or self.fabric.device.type in AT_ONCE:
                    self._check_finite()
                self.fabric.backward(losses.total / len(parts))
            found.append(losses._replace(total=losses.total.detach()))
        if self.paths is not None and self.paths.tree is None:
            for parameter in self.paths.parameters():  # until there is a tree, the optimiser does not touch the heads
                parameter.grad = None
        taken = self.loss_scale.unscale()
        if taken:
            self.method.before_update(self.step)
            self.method.clip_gradients(self.joint.parameters())
            self.optimiser.step()
            self.method.after_step(self.step)
            self._keep_features(parts, found)
        else:
            self.method.skip_step()
            self.loss_scale.skip()
        self.optimiser.zero_grad()
        losses = mean_losses(found, self.ranks)
        figures = self._figures(losses, taken)
        self._means.add(figures | losses.diagnostics)
        return figures

    def _figures(self, losses: Losses, taken: bool) -> dict[str, Tensor]:
        """Return the figures of a step, by metric: its losses and what the method reports."""
        clash = next(filter(metrics.is_reserved, losses.logs), None)
        if clash is not None:
            raise ValueError(
                f"the logs of {type(self.method).__name__} have a figure {clash!r}, but must have names other than "
                "those of hirl's own figures (hirl.runs.metrics)"
            )
        figures = {metrics.LOSS_IMAGE.name: losses.image, **losses.logs}
        if self.paths is not None and self.paths.tree is not None:
            figures |= {metrics.LOSS_SPD.name: losses.spd, metrics.LOSS_JOINT.name: losses.total}
        if self.loss_scale.scaler is not None:
            figures[metrics.SKIPPED.name] = losses.total.new_tensor(float(not taken))
        return figures

    def _keep_features(self, parts: list[Batch], found: list[Losses]) -> None:
        """Put z⁰ of a step's images into the bank, and some of an epoch's into its sample."""
        for part, losses in zip(parts, found, strict=True):
            if self.bank is not None:
                self.bank.collect(part.index, losses.target_z0, self.step + 1)
            if sum(map(len, self._sample)) < SAMPLE_SIZE:
                self._sample.append(self.ranks.joined(losses.z0.float()))

    def _check_finite(self) -> None:
        """Raise NotFinite, on every process, if a loss since the last check is not finite on one of them."""
        unchecked, self._unchecked = self._unchecked, []
        if not unchecked:  # which is so on every process
            return
        losses = torch.stack([loss.float() for _, loss, _ in unchecked])
        bad = self.ranks.max((~losses.isfinite()).int())
        if not bad.any():  # the one value that is read
            return
        step, loss, index = unchecked[int(bad.nonzero()[0])]
        found = [share for share in self.ranks.objects((float(loss), index.tolist())) if not math.isfinite(share[0])]
        raise NotFinite(step, found[0][0], torch.tensor([image for _, images in found for image in images]))

    def _set_rates(self) -> dict[str, float]:
        rates, peak = self.method.rates(self.step), self.method.peak_lr
        for group in self.optimiser.param_groups:
            group["lr"] = (peak if group.get("fixed_lr") else rates.lr) * group.get("lr_scale", 1.0)
            group["weight_decay"] = rates.weight_decay * group.get("wd_scale", 1.0)
        return {metrics.LR.name: rates.lr, metrics.WEIGHT_DECAY.name: rates.weight_decay}

    def state_dict(self) -> dict[str, Any]:
        """Return everything a step changes, and the plan and levels it was made with; the same on every process."""
        return {
            "step": self.step,
            "finished": self.finished,
            "training_tree": self.training_tree,
            "plan": dataclasses.asdict(self.plan),
            "levels": None if self.paths is None else list(self.paths.levels),
            "joint": self.joint.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "loss_scale": self.loss_scale.state_dict(),
            "bank": {} if self.bank is None else self.bank.state_dict(self.ranks),
            "means": self._means.state_dict(),
            "sample": [z0.cpu() for z0 in self._sample],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state, or start from stage one of a baseline.

        `plan` and `levels` are for readers of the checkpoint: a loop is built with its own.
        """
        if self.paths is not None and state["levels"] is None:  # of a baseline
            state = with_heads(state, self.state_dict())
        if self.keep_bank and not state["bank"]:  # the run began without one: it cannot be made up
            self.bank = None
        self.joint.load_state_dict(state["joint"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.loss_scale.load_state_dict(state["loss_scale"])
        if self.bank is not None:
            self.bank.load_state_dict(state["bank"], self.ranks)
        self._means.load_state_dict(state["means"], self.fabric.device)
        self._sample = list(state["sample"])
        self.step = state["step"]
        self.finished = state["finished"]
        self.training_tree = state["training_tree"]

    def _save_if_due(self) -> None:
        waits = self.ranks.size > 1 and self.fabric.device.type not in AT_ONCE
        if waits and self.step % SYNC_EVERY:  # processes agree by a message, so not after every step
            return
        stop = self._agreed(self.should_stop())
        if stop or self._agreed(time.monotonic() - self._last_save > self.save_every):
            self.save()
        if stop:
            raise Stopped

    def _agreed(self, mine: bool) -> bool:
        """Whether it is so on any process."""
        return bool(self.ranks.max(torch.tensor(float(mine))))

    def save(self) -> None:
        """Save the state, unless a loss before it was not finite; to be called on every process."""
        self._check_finite()
        state = self.state_dict()  # on every process, since the bank is gathered
        if self.fabric.is_global_zero:
            self.save_state(state)
        self._last_save = time.monotonic()


def _grouped(batches: Iterable[Batch], size: int) -> Iterable[list[Batch]]:
    """Yield consecutive batches in groups of `size`; an incomplete last group is dropped."""
    parts: list[Batch] = []
    for batch in batches:
        parts.append(batch)
        if len(parts) == size:
            yield parts
            parts = []
