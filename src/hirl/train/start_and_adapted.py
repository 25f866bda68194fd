"""Compares the adapted encoder with the one it started from.

Figures without labels: the silhouette of as many clusters as the tree has nodes above its leaves, whether two halves of
the images agree on these clusters, and how often an augmented view is nearest to its own image. With labels also KNN
and the AMI of K-means with as many clusters as classes. All are of training images, from cached features.

A difference counts if it is larger than the noise of its figure, which is measured: the same comparison is made on
random halves of the images. A figure of n images that is an average has the standard error s / √n. That of a random
half deviates from it by s / √(n/2) · √(1 − 1/2), which is s / √n as well: so the standard deviation of the differences
over the halves is the standard error of the difference over all images. It includes the starts of K-means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hirl.data.sources.image_set import Subset
from hirl.encoders.encoder_file import network_hash
from hirl.features.view_cache import compute_or_load_views
from hirl.files import write_json
from hirl.hierarchy.builder import HierarchicalKMeans
from hirl.hierarchy.level_search import ClusterCount, measure_clusters, reduce_rows
from hirl.hierarchy.levels import levels_by_number
from hirl.methods.parts.augmentations import moco_view
from hirl.metrics.agreement import mutual_information
from hirl.metrics.knn import held_out_accuracy
from hirl.metrics.neighbours import nearest_rows
from hirl.train.feature_loader import FeatureLoader
from hirl.train.job import Job
from hirl.train.setup import Components
from hirl.train.start import Start

MOST_IMAGES = 2_000
HALVES = 10  # random halves of the images that the noise is measured on
ERRORS = 3  # standard errors from which a difference counts; measured in docs/log.md
TRAINED_FOR = "views nearest to their own image"  # the figure that is the objective itself

Comparison = dict[str, tuple[float, float, float]]
"""By name of a figure, its value for the start, for the adapted encoder, and the least difference that counts.

All are the better the larger.
"""


def compare_start(job: Job, start: Start, components: Components) -> str:
    """Measure the start and the trained encoder, write adaptation.json, and return what to print."""
    settings, known = job.settings, job.data.images.labels
    if isinstance(components.loader, FeatureLoader):  # an adapter was trained on the start's features of views
        cached = components.loader.cached
        index = spread_over(cached.readable.nonzero()[:, 0])
        before = cached.rows[index, :2].float()  # (n, 2, width): the image and a view of it
        after = adapted_rows(components.method.encoder, before)
    else:
        index, before, after = _features_of_both(job, start)
    levels = None if settings.hierarchy is None else settings.hierarchy.levels
    sides = compare_with_start(before, after, None if known is None else known[index], levels, seed=settings.seed)
    write_json(job.run.adaptation_file, sides, indent=1)
    return f"{comparison_text(sides)}\nThe start is {job.run.start_file}: any command takes it in place of the run."


def _features_of_both(job: Job, start: Start) -> tuple[Tensor, Tensor, Tensor]:
    """Some images (n,), and the features (n, 2, width) of each and of a view of it, by start and trained encoder."""
    index = spread_over(torch.arange(len(job.data)))
    size, some = job.settings.image_size, Subset(job.data.images, index)
    trained = job.settings.method.encoder.eval()
    networks = (start.encoder.network, start.encoder.sha256), (trained, network_hash(trained.state_dict()))
    reading, device = job.data.reading(job.settings), job.fabric.device
    start_rows, trained_rows = (
        compute_or_load_views(network, sha256, some, moco_view(size), 1, size=size, device=device, **reading)
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
) -> Comparison:
    """Measure both encoders by their features (n, 2, width) of some images and of a view of each.

    labels (n, label levels); levels of the run's tree, None for a baseline.
    """
    levels = levels_by_number(len(start)) if levels is None else levels
    clusters = levels[min(1, len(levels) - 1)]

    units = [_reduced(rows[:, 0]) for rows in (start, adapted)]

    def measure(some: Tensor) -> list[tuple[str, float, float]]:
        known = None if labels is None else labels[some]
        before, after = (
            _figures(rows[some], None if found is None else found[some], known, clusters, seed)
            for rows, found in zip((start, adapted), units, strict=True)
        )
        return [(name, figure, other) for (name, figure), (_, other) in zip(before, after, strict=True)]

    random = torch.Generator().manual_seed(seed)
    # In random order, since clusters of the first half of them are compared with those of the second.
    orders = [torch.randperm(len(start), generator=random) for _ in range(1 + HALVES)]
    everything, *halves = (measure(order[: len(order) // (2 if place else 1)]) for place, order in enumerate(orders))
    changes = torch.tensor([[after - before for _, before, after in figures] for figures in halves])
    counts = ERRORS * changes.double().std(0)
    return {
        name: (before, after, float(least)) for (name, before, after), least in zip(everything, counts, strict=True)
    }


def _reduced(images: Tensor) -> Tensor | None:
    """The features as clusters are looked for in them; None if all images have the same: there are no clusters."""
    try:
        return reduce_rows(images)
    except RuntimeError:  # of eigh
        return None


def _clusters(units: Tensor | None, clusters: int, seed: int) -> ClusterCount:
    """How well the features fall into clusters: not at all if fewer images than clusters can be told apart."""
    none = ClusterCount(clusters, 0.0, 0.0)
    try:
        return none if units is None else measure_clusters(units, clusters, seed=seed)
    except ValueError:
        return none


def _figures(
    rows: Tensor, units: Tensor | None, labels: Tensor | None, clusters: int, seed: int
) -> Iterator[tuple[str, float]]:
    images, views = rows.unbind(1)
    clusters = max(2, min(clusters, len(images) // 4))
    found = _clusters(units, clusters, seed)
    yield f"silhouette of {clusters} clusters", found.silhouette
    yield "agreement of clusters from two halves", found.agreement
    own = [found.rows[:, 0] == torch.arange(len(images))[found.queries] for found in nearest_rows(images, views, 1)]
    yield TRAINED_FOR, float(torch.cat(own).float().mean())
    if labels is None:
        return
    for level, accuracy in enumerate(held_out_accuracy(images, labels)[0].tolist()):
        yield f"KNN, label level {level}", accuracy
    for level, truth in enumerate(labels.T):
        yield f"AMI of K-means, label level {level}", _class_agreement(images, truth, seed)


def _class_agreement(images: Tensor, truth: Tensor, seed: int) -> float:
    """AMI of as many clusters as classes; 0 if fewer images than that can be told apart."""
    try:
        clusters = HierarchicalKMeans(restarts=3)(images, (max(2, len(truth.unique())),), seed=seed).leaves
    except ValueError:
        return 0.0
    return mutual_information(clusters, truth)["AMI"]


def comparison_text(sides: Comparison) -> str:
    """A line per figure, and which of the two encoders is better in more of them, by more than the noise of each.

    Views that are nearest to their own image do not decide: adaptation trains for them.
    """
    width = max(map(len, sides))
    rows = [
        f"  {name:<{width}}  {start:.3f} → {adapted:.3f}  ({adapted - start:+.3f}; {_noise_text(least)})"
        for name, (start, adapted, least) in sides.items()
    ]
    changed = {
        name: (after > before) - (after < before)
        for name, (before, after, least) in sides.items()
        if abs(after - before) > least
    }
    better, worse = (list(changed.values()).count(sign) for sign in (1, -1))
    verdict = sum(sign for name, sign in changed.items() if name != TRAINED_FOR)
    winner = "Neither encoder is better"
    if verdict:
        winner = f"The {'adapted encoder' if verdict > 0 else 'start'} is better"
    heading = "the start → the adapted encoder, on training images; larger is better"
    counts = f"raises {better} of {len(sides)} figures by more than their noise and lowers {worse}"
    noise = f"A difference counts from {ERRORS} standard errors on, estimated on random halves of the images."
    lines = [heading, *rows, f"{winner}: adaptation {counts}."]
    if TRAINED_FOR in changed:
        lines.append(f"{TRAINED_FOR.capitalize()} do not decide: adaptation trains for them.")
    return "\n".join((*lines, noise))


def _noise_text(least: float) -> str:
    return "noise below 0.001" if least < 0.0005 else f"significant from {least:.3f}"
