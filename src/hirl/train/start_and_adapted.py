"""The start and the adapted encoder side by side, so that nobody is handed a worse encoder without knowing it.

Figures without labels: the silhouette of as many clusters as the tree has nodes above its leaves, whether two halves of
the images agree on these clusters, and how often an augmented view is nearest to its own image. With labels also KNN
and the AMI of K-means with as many clusters as classes. All are of training images, from cached features.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hirl.data.sources.image_set import Subset
from hirl.encoders.encoder_file import network_hash
from hirl.features.view_cache import cached_views
from hirl.files import CHECKSUM, atomic_write
from hirl.hierarchy.builder import HierarchicalKMeans
from hirl.hierarchy.level_search import ClusterCount, measure_clusters
from hirl.hierarchy.levels import levels_by_number
from hirl.metrics.agreement import mutual_information
from hirl.metrics.knn import fitting_ks, knn_accuracy
from hirl.metrics.neighbours import nearest_rows
from hirl.train.feature_loader import FeatureLoader
from hirl.train.job import Job
from hirl.train.setup import RunParts
from hirl.train.start import Start, adaptation_view

MOST_IMAGES = 2_000
QUERY_EVERY = 5
NO_DIFFERENCE = 0.01  # below which a figure counts as unchanged: another seed changes some by more

Sides = dict[str, tuple[float, float]]
"""By name of a figure, its value for the start and for the adapted encoder; all are the better the larger."""


def compare_start(job: Job, start: Start, parts: RunParts) -> str:
    """Measure the start and the trained encoder, write adaptation.json, and return what to print."""
    settings, known = job.settings, job.data.images.labels
    if isinstance(parts.loader, FeatureLoader):  # an adapter was trained on the start's features of views
        cached = parts.loader.cached
        index = spread_over(cached.readable.nonzero()[:, 0])
        before = cached.rows[index, :2].float()  # (n, 2, width): the image and a view of it
        after = adapted_rows(parts.method.encoder, before)
    else:
        index, before, after = _features_of_both(job, start)
    levels = None if settings.hierarchy is None else settings.hierarchy.levels
    sides = compare_with_start(before, after, None if known is None else known[index], levels, seed=settings.seed)
    with atomic_write(job.run.adaptation_file, checksum=True) as aside:
        aside.write_text(json.dumps({"checksum": CHECKSUM, **sides}, indent=1), encoding="utf-8")
    return f"{comparison_text(sides)}\nThe start is {job.run.start_file}: any command takes it in place of the run."


def _features_of_both(job: Job, start: Start) -> tuple[Tensor, Tensor, Tensor]:
    """Some images (n,), and the features (n, 2, width) of each and of a view of it, by start and trained encoder."""
    index = spread_over(torch.arange(len(job.data)))
    size, some = job.settings.image_size, Subset(job.data.images, index)
    trained = job.settings.method.encoder.eval()
    networks = (start.encoder.network, start.encoder.sha256), (trained, network_hash(trained.state_dict()))
    reading, device = job.data.reading(job.settings), job.fabric.device
    start_rows, trained_rows = (
        cached_views(network, sha256, some, adaptation_view(size), 1, size=size, device=device, **reading)
        for network, sha256 in networks
    )
    readable = start_rows.readable
    return index[readable], start_rows.rows[readable].float(), trained_rows.rows[readable].float()


def spread_over(images: Tensor) -> Tensor:
    """At most 2,000 of the images (n,), spread over them."""
    return images[np.linspace(0, len(images) - 1, min(len(images), MOST_IMAGES)).round()]


@torch.no_grad()
def adapted_rows(encoder: nn.Module, rows: Tensor) -> Tensor:
    """Rows (n, 2, width) of a frozen network, through the adapter on it."""
    device = next(encoder.parameters()).device
    return encoder.eval()(rows.flatten(0, 1)[:, :, None, None].to(device)).unflatten(0, (-1, 2)).cpu()


def compare_with_start(
    start: Tensor, adapted: Tensor, labels: Tensor | None, levels: Sequence[int] | None, *, seed: int
) -> Sides:
    """Measure both encoders by their features (n, 2, width) of some images and of a view of each.

    labels (n, label levels); levels of the run's tree, None for a baseline.
    """
    levels = levels_by_number(len(start)) if levels is None else levels
    clusters = max(2, min(levels[min(1, len(levels) - 1)], len(start) // 4))
    before, after = (dict(_figures(rows, labels, clusters, seed)) for rows in (start, adapted))
    return {name: (before[name], after[name]) for name in before}


def _figures(rows: Tensor, labels: Tensor | None, clusters: int, seed: int) -> Iterator[tuple[str, float]]:
    images, views = rows.unbind(1)
    try:
        found = measure_clusters(images, clusters, seed=seed)
    except RuntimeError:  # of eigh: all images have the same features: there are no clusters
        found = ClusterCount(clusters, 0.0, 0.0)
    yield f"silhouette of {clusters} clusters", found.silhouette
    yield "agreement of clusters from two halves", found.agreement
    own = [found.rows[:, 0] == torch.arange(len(images))[found.queries] for found in nearest_rows(images, views, 1)]
    yield "views nearest to their own image", float(torch.cat(own).float().mean())
    if labels is None:
        return
    query = torch.arange(len(images)) % QUERY_EVERY == 0
    ks = fitting_ks(int((~query).sum()))
    knn = knn_accuracy(images[~query], labels[~query], images[query], labels[query], ks=ks).amax(0)
    for level, accuracy in enumerate(knn.tolist()):
        yield f"KNN, label level {level}", accuracy
    for level, truth in enumerate(labels.T):
        found_clusters = HierarchicalKMeans(restarts=3)(images, (max(2, len(truth.unique())),), seed=seed).leaves
        yield f"AMI of K-means, label level {level}", mutual_information(found_clusters, truth)["AMI"]


def comparison_text(sides: Sides) -> str:
    """A line per figure, and which of the two encoders is better in more of them, by at least NO_DIFFERENCE."""
    width = max(map(len, sides))
    rows = [f"  {name:<{width}}  {start:.3f} → {adapted:.3f}" for name, (start, adapted) in sides.items()]
    better, worse = (
        sum(sign * (after - before) >= NO_DIFFERENCE for before, after in sides.values()) for sign in (1, -1)
    )
    winner = "Neither encoder is better"
    if better != worse:
        winner = f"The {'adapted encoder' if better > worse else 'start'} is better"
    heading = "the start → the adapted encoder, on training images; larger is better"
    counts = f"raises {better} of {len(sides)} figures by {NO_DIFFERENCE} or more and lowers {worse}"
    return "\n".join((heading, *rows, f"{winner}: adaptation {counts}."))
