"""Batches of cached features instead of images, for a frozen encoder: the counterpart of `data.loader.Loader`.

As there, the order of an epoch is a function of (seed, epoch). Which of an image's cached views an epoch draws is a
function of (seed, epoch, image).

Nearest neighbours as positives are NNCLR's idea (Dwibedi et al., 2021, arXiv:2104.14548). Here they come from the
frozen encoder, and with HIRL they must share a node of the tree: an image in another node is never a partner.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from hirl.data.loader import check_batch
from hirl.data.sources.skipped import stand_ins
from hirl.data.upload import upload
from hirl.data.views.draws import Ints, permutation, uniforms
from hirl.data.views.normalisation import Normalisation
from hirl.data.views.render import Batch
from hirl.features.view_cache import CachedViews
from hirl.hierarchy.tree import PrototypeTree
from hirl.metrics.neighbours import nearest_rows
from hirl.seeds import CACHED_VIEW, PARTNER_VIEW

PARTNERS = 20  # per image, at most
CONSIDERED = 100  # nearest images that are searched for those in the same node


class FeatureLoader:
    """Batches whose views (B, width, 1, 1) are cached features: `views` per image, distinct if there are enough.

    With probability `neighbours`, all views of an image after the first come from one of its `partners`. The method
    treats them as views of the same image.
    """

    workers = 0

    def __init__(
        self,
        cached: CachedViews,
        views: int,
        *,
        batch_size: int,
        seed: int,
        normalisation: Normalisation,
        neighbours: float = 0.0,
        device: torch.device,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """`batch_size` is the global one, over all ranks."""
        check_batch(batch_size, world_size)
        self.cached, self.views, self.batch_size, self.seed = cached, views, batch_size, seed
        self.normalisation, self.device, self.rank, self.world_size = normalisation, device, rank, world_size
        self.epoch, self.start_batch, self.waited = 0, 0, 0.0
        self.neighbours = neighbours
        self._nodes: Tensor | None = None  # (N,) of all images; partners share theirs
        self._partners: Tensor | None = None  # found when they are first drawn
        self._stand_ins = stand_ins(cached.readable).numpy()

    def restrict_partners(self, nodes: Tensor) -> None:
        """From now on, draw only partners in the same node; `nodes` (N,), −1 for an image that is in none."""
        if self.neighbours and (self._nodes is None or not torch.equal(nodes, self._nodes)):
            self._nodes, self._partners = nodes, None

    @property
    def partners(self) -> Tensor:
        """(N, k): per image, those whose views may replace its own; a row ends with −1 if there are fewer."""
        if self._partners is None:
            self._partners = find_partners(self.cached.rows[:, 0].nan_to_num(), self._nodes, device=self.device)
        return self._partners

    def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
        """Set the epoch and the first batch of the next iteration."""
        self.epoch, self.start_batch = epoch, start_batch

    def __len__(self) -> int:
        return len(self.cached.readable) // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        order = permutation(self.seed, self.epoch, len(self.cached.readable))
        _ = self.partners if self.neighbours else None  # found now: the search is no waiting for data
        for number in range(self.start_batch, len(self)):
            start = perf_counter()
            share = np.array_split(order[number * self.batch_size :][: self.batch_size], self.world_size)[self.rank]
            batch = self._batch(self._stand_ins[share])
            self.waited += perf_counter() - start
            yield batch

    def _batch(self, index: Ints) -> Batch:
        count = self.cached.rows.shape[1] - 1
        draws = uniforms(self.seed, self.epoch, index, [CACHED_VIEW], range(count))[:, 0]  # (B, V)
        chosen = draws.argsort(axis=1)[:, np.arange(self.views) % count]  # (B, views)
        lent = self._lenders(index)
        rows = self.cached.rows
        views = [rows[index if place == 0 else lent, 1 + chosen[:, place]] for place in range(self.views)]
        shaped = [upload(view.float()[:, :, None, None], self.device) for view in views]
        return Batch(torch.from_numpy(index), shaped, [None] * self.views)

    def _lenders(self, index: Ints) -> Ints:
        """(B,) per image, the one that its views after the first come from: a partner or itself."""
        if not self.neighbours:
            return index
        table = self.partners.numpy()[index]  # (B, k)
        draws = uniforms(self.seed, self.epoch, index, [PARTNER_VIEW], range(2))[:, 0]  # (B, 2)
        known = (table >= 0).sum(1)
        partner = table[np.arange(len(index)), (draws[:, 1] * known).astype(np.int64)]
        lent: Ints = np.where((draws[:, 0] < self.neighbours) & (known > 0), partner, index)
        return lent


def partner_nodes(tree: PrototypeTree) -> Tensor:
    """(N,) per image, the node its partners must share, −1 for none: one level above the leaves if there is one.

    Within a leaf, which is small, partners would be few and the same as without a tree.
    """
    return tree.image_paths[:, min(1, len(tree.levels) - 1)].cpu()


def find_partners(features: Tensor, nodes: Tensor | None = None, *, device: torch.device | None = None) -> Tensor:
    """(N, k): the images nearest to each by their features (N, width), the nearest first, padded with −1.

    `nodes` (N,): the node of each image in the tree, or −1; partners must share it. `device`: where to compare.
    """
    N = len(features)
    found = torch.full((N, min(PARTNERS, N - 1)), -1)
    for some in nearest_rows(features, features, min(N, CONSIDERED + 1), device=device):
        own, rows = torch.arange(N)[some.queries], some.rows.cpu()
        fits = rows != own[:, None]
        if nodes is not None:
            fits &= (nodes[rows] == nodes[own][:, None]) & (nodes[own] >= 0)[:, None]
        order = (~fits).long().argsort(dim=1, stable=True)  # those in the same node first, nearest first
        rows = torch.where(fits, rows, -1).gather(1, order)[:, : found.shape[1]]
        found[some.queries, : rows.shape[1]] = rows
    return found
