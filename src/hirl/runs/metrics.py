"""metrics.jsonl: its lines, each with a checksum of its own, since the file grows line by line, and its figures.

This is the one list of their names, what each of them is, and where it is shown.
All figures are in metrics.jsonl, TensorBoard and W&B. What a method reports of its own (`Output.logs`) is not listed
here: it gets a chart of its own.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hirl.terminal.figures import Figure, Kind

MARKS = ("step", "epoch", "finished", "saved")  # what a line of metrics.jsonl has besides figures
_MARK = ', "crc32": "'  # before the checksum of a line
RECENT = "recent_"  # before the name of a figure: its mean over the steps since the last report, not over the epoch


@dataclass(frozen=True)
class Chart:
    """Curves on the page of a run that share a scale."""

    title: str
    from_zero: bool = False


@dataclass(frozen=True)
class Metric:
    """A figure: its name, in which {level} stands for the number of a level, and where it is shown."""

    name: str
    about: str
    kind: Kind
    chart: Chart | None  # None: not on the page
    column: str | None = None  # of `hirl runs`, where the finest level stands for all
    summary: bool = True  # whether it is among the last figures of `hirl show` and of notebooks

    def at(self, level: int) -> str:
        """The name of the figure of a level."""
        return self.name.format(level=level)


LOSSES, LATEST, KNN = Chart("Losses"), Chart("Losses since the last report"), Chart("KNN accuracy")
GRADIENTS, VIEWS = Chart("Gradients", from_zero=True), Chart("Views")
BANK, LEAVES = Chart("Bank"), Chart("Leaves")

# Means over an epoch.
LOSS_IMAGE = Metric("loss_image", "L_img, the loss of the method", Kind.NUMBER, LOSSES, "loss_image")
LOSS_SPD = Metric("loss_spd", "L_SPD, from the first tree on", Kind.NUMBER, LOSSES, "loss_spd")
LOSS_JOINT = Metric("loss_joint", "L_img + weight · L_SPD (Eq. 4), from then on", Kind.NUMBER, LOSSES)
GRADIENT_IMAGE = Metric("gradient_image", "length of the gradient of L_img at z⁰", Kind.NUMBER, GRADIENTS)
GRADIENT_SPD = Metric("gradient_spd", "that of weight · L_SPD", Kind.NUMBER, GRADIENTS)
GRADIENT_COSINE = Metric(
    "gradient_cosine",
    "1: both losses pull z⁰ in one direction; −1: in opposite ones",
    Kind.SCORE,
    Chart("Gradient cosine"),
)
VIEW_AGREEMENT = Metric("view_agreement", "share of images whose two views have the same leaf", Kind.SHARE, VIEWS)
VIEW_AGREEMENT_COARSEST = Metric("view_agreement_coarsest", "or the same coarsest node", Kind.SHARE, VIEWS)
SKIPPED = Metric("skipped", "share of steps of 16-mixed whose gradients overflowed", Kind.SHARE, Chart("Skipped steps"))

# At the end of an epoch.
KNN_VAL = Metric(
    "knn_val_level_{level}", "of val images, by level of the labels; level 0 is the finest", Kind.SHARE, KNN, "knn"
)
KNN_TRAIN = Metric(
    "knn_train_level_{level}", "of a fifth of the training images, by level of the labels", Kind.SHARE, KNN, "knn"
)
MAJORITY_VAL = Metric("majority_val_level_{level}", "majority: share of the largest class", Kind.SHARE, KNN)
MAJORITY_TRAIN = Metric("majority_train_level_{level}", "majority: share of the largest class", Kind.SHARE, KNN)
EFFECTIVE_RANK = Metric(
    "effective_rank",
    "dimensions that z⁰ uses; near 1 all images look alike",
    Kind.NUMBER,
    Chart("Effective rank", from_zero=True),
)
FEATURE_STD = Metric(
    "feature_std",
    "1: spread evenly over the sphere; near 0: collapsed",
    Kind.NUMBER,
    Chart("Spread of z⁰", from_zero=True),
)
SECONDS_EPOCH = Metric("seconds_epoch", "time of the epoch, its tree included", Kind.SECONDS, None)

# Of a tree.
MOVED_LEAVES = Metric(
    "moved_leaves", "share of images that changed leaf since the previous tree", Kind.SHARE, Chart("Moved leaves")
)
PURITY = Metric(
    "purity_{level}",
    "share of images of their node's most frequent class, by level of the tree",
    Kind.SHARE,
    Chart("Purity"),
)
BANK_AGREEMENT = Metric(
    "bank_agreement", "share of images whose stored feature finds the leaf of the clean image", Kind.SHARE, BANK
)
BANK_AGREEMENT_COARSEST = Metric("bank_agreement_coarsest", "or its coarsest node", Kind.SHARE, BANK)
ASSIGNMENT_ENTROPY = Metric("assignment_entropy", "evenness of their sizes", Kind.SHARE, LEAVES)
ONE_IMAGE_LEAVES = Metric("one_image_leaves", "share of leaves of a single image", Kind.SHARE, LEAVES)
EMPTY_LEAVES = Metric("empty_leaves", "share of leaves without images", Kind.SHARE, LEAVES)
LARGEST_NODE = Metric(
    "largest_node_{level}", "share of all images in the largest node of each level", Kind.SHARE, Chart("Largest nodes")
)
SECONDS_FEATURES = Metric("seconds_features", "time to collect z⁰ of all images", Kind.SECONDS, None)
SECONDS_KMEANS = Metric("seconds_kmeans", "time to build the tree", Kind.SECONDS, None)
SECONDS_AGREEMENT = Metric("seconds_agreement", "time to compare the bank with clean images", Kind.SECONDS, None)

# Every few seconds. The recent losses depend on the moment of the report, so they are no summary of a run.
LR = Metric("lr", "at the last step", Kind.NUMBER, Chart("Learning rate", from_zero=True))
WEIGHT_DECAY = Metric("weight_decay", "at the last step", Kind.NUMBER, Chart("Weight decay", from_zero=True))
LOSS_SCALE = Metric("loss_scale", "of 16-mixed, at the last step", Kind.COUNT, Chart("Loss scale", from_zero=True))
IMAGES_PER_SECOND = Metric(
    "images_per_second", "since the last report", Kind.COUNT, Chart("Images per second", from_zero=True)
)
WAITING_FOR_DATA = Metric(
    "waiting_for_data", "share of the time since the last report", Kind.SHARE, Chart("Waiting for data")
)
RECENT_LOSSES = tuple(
    Metric(RECENT + loss.name, "reported every few seconds", Kind.NUMBER, LATEST, summary=False)
    for loss in (LOSS_IMAGE, LOSS_SPD, LOSS_JOINT)
)

METRICS = (  # in the order of the charts and of the summary
    LOSS_IMAGE, LOSS_SPD, LOSS_JOINT, *RECENT_LOSSES, KNN_VAL, KNN_TRAIN, MAJORITY_VAL, MAJORITY_TRAIN,
    EFFECTIVE_RANK, FEATURE_STD, GRADIENT_IMAGE, GRADIENT_SPD, GRADIENT_COSINE, VIEW_AGREEMENT,
    VIEW_AGREEMENT_COARSEST, MOVED_LEAVES, PURITY, BANK_AGREEMENT, BANK_AGREEMENT_COARSEST, ASSIGNMENT_ENTROPY,
    ONE_IMAGE_LEAVES, EMPTY_LEAVES, LARGEST_NODE, LR, WEIGHT_DECAY, LOSS_SCALE, SKIPPED, IMAGES_PER_SECOND,
    WAITING_FOR_DATA, SECONDS_EPOCH, SECONDS_FEATURES, SECONDS_KMEANS, SECONDS_AGREEMENT,
)  # fmt: skip
_BY_NAME = {metric.name: metric for metric in METRICS}


def find_metric(name: str) -> Metric:
    """The metric of a name in metrics.jsonl. A figure of a method has a chart of its own, but not its recent mean."""
    found = _BY_NAME.get(name) or _BY_NAME.get(re.sub(r"\d+$", "{level}", name))
    if found is not None:
        return found
    chart = None if name.startswith(RECENT) else Chart(name)
    return Metric(name, "reported by the method", Kind.NUMBER, chart, summary=chart is not None)


def is_reserved(name: str) -> bool:
    """Whether a method must not report a figure of this name."""
    return name in MARKS or name.startswith(RECENT) or find_metric(name) in METRICS


def figures_of(line: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures of a line of metrics.jsonl by name, each of its kind."""
    return {
        name: Figure(value, find_metric(name).kind)
        for name, value in line.items()
        if name not in MARKS and isinstance(value, int | float)
    }


def last_figures(lines: Iterable[Mapping[str, Any]]) -> dict[str, Figure]:
    """The last value of every figure that is part of a run's summary, in the order of METRICS."""
    found = {name: figure for line in lines for name, figure in figures_of(line).items()}
    order = {metric: place for place, metric in enumerate(METRICS)}
    names = sorted(found, key=lambda name: order.get(find_metric(name), len(METRICS)))
    return {name: found[name] for name in names if find_metric(name).summary}


def metric_values(lines: Sequence[Mapping[str, Any]], metric: Metric) -> list[float]:
    """All values of a metric, of its finest level; of a loss in a run's first epoch the recent means."""
    for name in (metric.at(0), RECENT + metric.at(0)):
        if values := [float(line[name]) for line in lines if isinstance(line.get(name), int | float)]:
            return values
    return []


def report_line(report: dict[str, Any]) -> str:
    text = json.dumps(report)
    return f'{text[:-1]}{_MARK}{zlib.crc32(text.encode()):08x}"}}\n'


def read_reports(file: Path) -> tuple[list[dict[str, Any]], int]:
    """The reports in a file, oldest first, and the number of damaged lines among them, such as a last one cut off."""
    if not file.is_file():
        return [], 0
    *lines, rest = file.read_text(encoding="utf-8", errors="replace").split("\n")
    found = [*(_read(line) for line in lines if line), *([None] if rest else [])]
    return [report for report in found if report is not None], sum(report is None for report in found)


def _read(line: str) -> dict[str, Any] | None:
    """The report of a line; None if it is damaged."""
    body, _, digits = line.rpartition(_MARK)
    text = f"{body}}}"
    if digits != f'{zlib.crc32(text.encode()):08x}"}}':
        return None
    try:
        report = json.loads(text)
    except ValueError:
        return None
    sound = isinstance(report, dict) and all(isinstance(report.get(key), int | float) for key in ("step", "epoch"))
    return report if sound else None
