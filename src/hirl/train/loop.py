"""Alg. 2: stage one trains with L_img; from epoch T₁ on, each epoch builds a tree and trains with the joint loss.

The loop is our own, on Lightning's Fabric, which provides devices, processes and precision, rather than Lightning's
Trainer: everything a step changes is one dictionary (`Loop.state_dict`), and everything else is a function of
(seed, step). So a run that is killed anywhere and continued ends in the same bits, which the Trainer does not promise
for a restart within an epoch.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from hirl import ranks
from hirl.data.loader import grouped
from hirl.data.views.render import Batch
from hirl.runs import metrics
from hirl.seeds import Stream, mix_seed
from hirl.signals import Stopped
from hirl.train.bank import Bank
from hirl.train.epoch_trees import EpochTrees
from hirl.train.feature_loader import FeatureLoader, partner_nodes
from hirl.train.finite_losses import FiniteLosses
from hirl.train.fork import add_heads
from hirl.train.joint import Joint, Losses, mean_losses
from hirl.train.keeping import Store
from hirl.train.loss_scale import LossScale
from hirl.train.means import Means
from hirl.train.observer import Observer, Rates
from hirl.train.setup import Components

SYNC_EVERY = 20  # steps between checks that make a GPU or other processes wait
SYNCHRONOUS_DEVICES = ("cpu",)  # devices on which reading a value does not wait for earlier steps
SAMPLE_SIZE = 2048  # images per epoch whose z⁰ is checked for collapse
DIAGNOSED_STEPS = 8  # steps per epoch whose gradients are compared


class Loop:
    """One run of Alg. 2. `fit` continues from `step`, which `load_state_dict` may have set."""

    def __init__(
        self,
        fabric: Fabric,
        components: Components,
        observer: Observer,
        store: Store,
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.fabric, self.observer, self.store, self.should_stop = fabric, observer, store, should_stop
        self.method, self.paths, self.plan = components.method, components.paths, components.plan
        self.loader, self.seed, self.unfreezing = components.loader, components.seed, components.unfreezing
        self.step = 0
        self.finished = False  # whether the tree is that of the trained encoder
        self.training_tree: dict[str, Tensor] = {}  # the last epoch's, once `finished`
        self.ranks = ranks.world()
        hierarchy = components.hierarchy
        self.joint = Joint(self.method, self.paths, assign="stored" if hierarchy is None else hierarchy.assign)
        optimiser = self.method.optimiser(self._groups())
        self.module, self.optimiser = fabric.setup(self.joint, optimiser)
        self.loss_scale = LossScale(fabric, self.joint, optimiser)
        self.bank = None
        if store.keeps_bank or (hierarchy is not None and hierarchy.features == "bank"):
            momentum = 0.0 if hierarchy is None else hierarchy.bank_momentum
            self.bank = Bank(components.N, self.method.dim, momentum=momentum)
        self.trees = None
        if self.paths is not None:
            self.trees = EpochTrees(fabric, components, observer, store, should_stop=should_stop)
        self._last_save = time.monotonic()
        self._means = Means()  # of this epoch so far
        self._sample: list[Tensor] = []  # z⁰ of some batches of this epoch
        self.losses = FiniteLosses(self.ranks)

    def _groups(self) -> list[dict[str, Any]]:
        """The optimiser's groups of parameters: those of the method, then those of HIRL's heads."""
        groups = [group | {"of": "method"} for group in self.method.param_groups(self.method)]
        if self.paths is not None and self.paths.head_layers:
            groups += [group | {"of": "heads"} for group in self.method.param_groups(self.paths)]
        return groups if self.unfreezing is None else self.unfreezing.scaled(groups)

    def fit(self) -> None:
        """Train to the end, saving the state after every epoch, and build the tree of the trained encoder."""
        while self.step < self.plan.steps:
            self.fit_epoch()
            self.save()
            if self._any_rank(self.should_stop()):
                raise Stopped
        self.finish()

    def finish(self) -> None:
        """Build the run's final tree over the trained encoder's z⁰ of all images, uncropped.

        From then on `tree.assign` gives z⁰ of the same images the same leaves. A run killed here has saved its last
        step, and builds the same tree from it again.
        """
        if self.trees is None:
            return
        if not self.finished:
            self.training_tree = self.trees.paths.get_extra_state()  # the one that the heads were trained with
            self.trees.build(self.plan.epochs, self.bank, self.step)
            self.finished = True
            self.save()
        elif self.fabric.is_global_zero and self.trees.paths.tree is not None:  # killed after the state was saved
            self.store.save_tree(self.trees.paths.tree)

    def fit_epoch(self) -> None:
        """Train the current epoch, or the rest of it; in stage two it begins with a new tree."""
        self.module.train()
        epoch, done = divmod(self.step, self.plan.steps_per_epoch)
        if done == 0 and self.trees is not None and epoch >= self.trees.hierarchy.start_epoch:
            self.trees.build(epoch, self.bank, self.step)
        tree = None if self.paths is None else self.paths.tree
        if isinstance(self.loader, FeatureLoader) and tree is not None:
            self.loader.restrict_partners(partner_nodes(tree))
        self.loader.set_epoch(epoch, done * self.plan.accumulate)
        waited = self.loader.waited
        for parts in grouped(self.loader, self.plan.accumulate):
            figures = self._step(parts)
            self.step += 1
            images = sum(len(part) for part in parts) * self.fabric.world_size
            self.observer.on_step(self.step, figures, self._rates, images, self.loader.waited - waited)
            waited = self.loader.waited
            if self.step % self.plan.steps_per_epoch == 0:
                break  # `fit` saves after the epoch's report: a run continued from an earlier save would omit it
            self._save_if_due()
        self.losses.check()
        self.observer.on_epoch_end(epoch, self.step, self._means.take(), [z0.cpu() for z0 in self._sample])
        self._sample = []

    def _step(self, parts: list[Batch]) -> dict[str, Tensor]:
        """Take one step and return the figures of its batch, over all parts and processes.

        A step whose gradients overflow in half precision changes nothing but the scale of the next loss.
        """
        # Drop path and similar layers draw from torch's global generator.
        torch.manual_seed(mix_seed(self.seed, Stream.FORWARD, self.step))
        self._rates: Rates = {**self._set_rates(), **self.loss_scale.figures()}
        self.loss_scale.begin()
        part_losses: list[Losses] = []
        diagnose = self.step % max(1, self.plan.steps_per_epoch // DIAGNOSED_STEPS) == 0
        for place, part in enumerate(parts):
            with self.fabric.no_backward_sync(self.module, enabled=place + 1 < len(parts)):
                seed = mix_seed(self.seed, Stream.NEGATIVES, self.step, place)
                losses = self.module(part.views, part.masks, part.index, self.step, seed, diagnose=diagnose)
                self.losses.add(self.step, losses.total, part.index)
                # Before the update, so that weights stay good; on a GPU not at every step, since reading waits.
                due = self.step % SYNC_EVERY == 0 and place + 1 == len(parts)
                if due or self.fabric.device.type in SYNCHRONOUS_DEVICES:
                    self.losses.check()
                self.fabric.backward(losses.total / len(parts))
            part_losses.append(losses._replace(total=losses.total.detach()))
        if self.paths is not None and self.paths.tree is None:
            for parameter in self.paths.parameters():  # until there is a tree, the optimiser does not touch the heads
                parameter.grad = None
        taken = self.loss_scale.unscale()
        if taken:
            self.method.before_update(self.step)
            if self.unfreezing is not None:
                self.unfreezing.before_update(self.step)
            self.method.clip_gradients(self.joint.parameters())
            self.optimiser.step()
            self.method.after_step(self.step)
            self._keep_features(parts, part_losses)
        else:
            self.method.skip_step()
            self.loss_scale.skip()
        self.optimiser.zero_grad()
        losses = mean_losses(part_losses, self.ranks)
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

    def _keep_features(self, parts: list[Batch], part_losses: list[Losses]) -> None:
        """Put z⁰ of a step's images into the bank, and some of an epoch's into its sample."""
        for part, losses in zip(parts, part_losses, strict=True):
            if self.bank is not None:
                self.bank.collect(part.index, losses.target_z0, self.step + 1)
            if sum(map(len, self._sample)) < SAMPLE_SIZE:
                self._sample.append(self.ranks.gather(losses.z0.float()))

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
            state = add_heads(state, self.state_dict())
        if self.store.keeps_bank and not state["bank"]:  # the run began without a bank, which cannot be filled later
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
        waits = self.ranks.size > 1 and self.fabric.device.type not in SYNCHRONOUS_DEVICES
        if waits and self.step % SYNC_EVERY:  # processes agree by a message, so not after every step
            return
        stop = self._any_rank(self.should_stop())
        if stop or self._any_rank(time.monotonic() - self._last_save > self.store.save_every):
            self.save()
        if stop:
            raise Stopped

    def _any_rank(self, mine: bool) -> bool:
        return bool(self.ranks.max(torch.tensor(float(mine))))

    def save(self) -> None:
        """Save the state, unless an earlier loss was not finite; to be called on every process."""
        self.losses.check()
        state = self.state_dict()  # on every process, since the bank is gathered
        if self.fabric.is_global_zero:
            self.store.save_state(state)
        self._last_save = time.monotonic()
