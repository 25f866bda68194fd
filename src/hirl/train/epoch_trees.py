"""The tree of an epoch, as Alg. 2 builds one before each epoch of stage two, and the final one after the last step."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from hirl import ranks
from hirl.features.forward_pass import collected_outputs
from hirl.hierarchy.clusters import TooFewDirections
from hirl.hierarchy.rows import SHORTEST, accumulator
from hirl.runs import metrics
from hirl.runs.representations import clustering_function
from hirl.seeds import Stream, mix_seed
from hirl.signals import Stopped
from hirl.train.bank import Bank
from hirl.train.diagnostics import bank_agreement
from hirl.train.keeping import Store
from hirl.train.observer import Observer
from hirl.train.setup import Components


class EpochTrees:
    """Builds the trees of a run with a hierarchy, over all of its readable images."""

    def __init__(
        self,
        fabric: Fabric,
        components: Components,
        observer: Observer,
        store: Store,
        *,
        should_stop: Callable[[], bool],
    ) -> None:
        assert components.hierarchy is not None
        assert components.paths is not None
        self.hierarchy, self.paths, self.method = components.hierarchy, components.paths, components.method
        self.loader, self.N = components.evaluation_loader, components.N
        self.seed, self.epochs = components.seed, components.plan.epochs
        self.fabric, self.observer, self.store, self.should_stop = fabric, observer, store, should_stop
        self.ranks = ranks.world()

    def build(self, epoch: int, bank: Bank | None, step: int) -> None:
        """Build the tree of this epoch, or after the last one the final tree; `step` is the number of steps so far."""
        start = time.perf_counter()
        report = self.observer.on_tree_start(epoch)

        def progress(*figures: int) -> None:
            self._stop_if_asked()
            if report is not None:
                report(*figures)

        final = epoch == self.epochs
        index, features = self._embed_all() if final else self._features(bank, step)
        features = features.to(self.fabric.device)
        rows: dict[str, Any] = {"index": index, "images": self.N, "group": self.ranks.group}
        seed = mix_seed(self.seed, Stream.KMEANS, epoch)
        embedded = time.perf_counter()
        if final or self.hierarchy.rebuild or self.paths.tree is None:
            built = self._build_or_warn(epoch, features, seed=seed, progress=progress, anew=final, **rows)
            if not built and final and self.paths.tree is not None:
                directed = _have_direction(features)  # the other images are not in the tree
                features, rows["index"] = features[directed], index[directed.to(index.device)]
            elif not built:
                return
        else:
            self.paths.follow(features, index=index, group=self.ranks.group)
        if final:  # so that `tree.assign` on the same images returns the stored leaves
            self.paths.reassign(features, **rows)
        tree = self.paths.tree
        assert tree is not None
        seconds = {
            metrics.SECONDS_FEATURES.name: embedded - start,
            metrics.SECONDS_KMEANS.name: time.perf_counter() - embedded,
        }
        if self.fabric.is_global_zero:
            self.store.save_tree(tree)
        agreement = {}
        if bank is not None and not final:
            compared = time.perf_counter()
            agreement = bank_agreement(tree, self.method, self.loader, self.ranks)
            seconds[metrics.SECONDS_AGREEMENT.name] = time.perf_counter() - compared
        self.observer.on_tree_built(epoch, seconds, tree, agreement)

    def _build_or_warn(self, epoch: int, features: Tensor, **arguments: Any) -> bool:
        """Build a new tree and return True; or warn that the last one is kept, if training may go on without."""
        try:
            self.paths.refresh(features, **arguments)
        except ValueError as error:
            final = epoch == self.epochs
            if not (final or isinstance(error, TooFewDirections)):  # which an encoder may recover from
                raise
            if self.fabric.is_global_zero:
                name = "the finished run" if final else f"epoch {epoch + 1}"
                kept = "has no tree" if self.paths.tree is None else "keeps the prototypes of the last tree"
                warnings.warn(f"{name} {kept}: {error}", stacklevel=3)
            return False
        return True

    def _features(self, bank: Bank | None, step: int) -> tuple[Tensor, Tensor]:
        """Return this process's images (n,) and their z⁰ (n, D), from the bank or from a pass over all images."""
        if bank is None:
            return self._embed_all()
        if bank.missing(self.ranks):  # so that images that no epoch has included have a feature from now on
            bank.replace(*self._embed_all(), step, self.ranks)
        return bank.clustering_features(self.ranks)

    def _embed_all(self) -> tuple[Tensor, Tensor]:
        """Return this process's share (n,) of all readable images and their z⁰ (n, D), uncropped and in eval mode."""
        embed = clustering_function(self.method, self.paths)

        def embed_or_stop(images: Tensor) -> Tensor:
            self._stop_if_asked()
            return embed(images)

        return collected_outputs(self.method, self.loader, apply=embed_or_stop)

    def _stop_if_asked(self) -> None:
        """A tree is built after a step that has been saved: one process can stop there at once."""
        if self.ranks.size == 1 and self.should_stop():
            raise Stopped


def _have_direction(features: Tensor) -> Tensor:
    """(n,): whether a row can be compared by cosine, which NaN, infinite rows and rows of length 0 cannot."""
    length = torch.linalg.vector_norm(features.float(), dim=1, dtype=accumulator(features.device)).float()
    return length.isfinite() & (length >= SHORTEST)
