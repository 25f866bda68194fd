"""KNN against lightly's, the growth of the tasks clustering and tree with N, and the time a second task saves."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightly.utils.benchmarking import knn_predict
from rich.console import Console
from rich.table import Table
from torch import Tensor

import hirl
from benchmarks.measure import peak_mebibytes, seconds
from hirl.data import Shapes
from hirl.data.sources.arrays import ArrayImages
from hirl.data.views.normalisation import IMAGENET_MEAN, IMAGENET_STD, Normalisation
from hirl.evals import KNN, Clustering, TreeAgreement
from hirl.evals.base import Evaluation, Subject
from hirl.metrics.knn import KS, TEMPERATURE, knn_accuracy

TRAIN, TEST, D, CLASSES, BATCH = 50_000, 10_000, 512, 100, 512
PROMISED = 2
NOISE, GROWN_NOISE = 6.0, 3.0
GROWTH = (12_500, 25_000, 50_000, 100_000)
GROWN_DIM, GROWN_CLASSES = 128, (100, 20, 5)


def classes_around(count: int, D: int, classes: int, seed: int, noise: float) -> tuple[Tensor, Tensor]:
    """Unit rows around a direction per class, and their classes; the more noise, the more they overlap."""
    middle = torch.randn(classes, D, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    return F.normalize(middle[labels] + noise * torch.randn(count, D, generator=generator), dim=1), labels


def prepared_knn(form: str, train: int, test: int) -> Callable[[], list[float]]:
    """The accuracy at each K, by ours or by lightly's function, called once per K in batches."""
    rows, labels = classes_around(train, D, CLASSES, 1, NOISE)
    queries, truth = classes_around(test, D, CLASSES, 2, NOISE)

    def ours() -> list[float]:
        return knn_accuracy(rows, labels[:, None], queries, truth[:, None])[:, 0].tolist()

    def theirs() -> list[float]:
        found = []
        for k in KS:
            correct = 0
            for some, of in zip(queries.split(BATCH), truth.split(BATCH), strict=True):
                predictions = knn_predict(some, rows.T, labels, CLASSES, knn_k=k, knn_t=TEMPERATURE)[:, 0]
                correct += int((predictions == of).sum())
            found.append(correct / test)
        return found

    return ours if form == "hirl" else theirs


def against_lightly(train: int = TRAIN, test: int = TEST) -> None:
    title = f"KNN, {train:,} × {test:,} × {D}, {CLASSES} classes, K {KS}, float32"
    table = Table(title=title, title_justify="left")
    for heading in ("by", "seconds", "lightly / this", "promised", "peak MiB more", "accuracy at each K"):
        table.add_column(heading, justify="right")
    times = {form: seconds(prepared_knn(form, train, test), repeats=2) for form in ("hirl", "lightly")}
    for form, taken in times.items():
        accuracy = ", ".join(f"{share:.2%}" for share in prepared_knn(form, train, test)())
        ratio, aim = f"{times['lightly'] / taken:.1f}×", f"{PROMISED}×" if form == "hirl" else ""
        memory = peak_mebibytes(prepared_knn, form, train, test)
        table.add_row(form, f"{taken:.2f}", ratio, aim, f"{memory:.0f}", accuracy)
    Console(width=120).print(table)


def labelled(count: int, seed: int, name: str) -> tuple[Tensor, ArrayImages]:
    """Features in a tree of classes, and labelled images whose pixels are not used."""
    features, fine = classes_around(count, GROWN_DIM, GROWN_CLASSES[0], seed, GROWN_NOISE)
    labels = torch.stack([fine * size // GROWN_CLASSES[0] for size in GROWN_CLASSES], dim=1)
    names = tuple(tuple(map(str, range(size))) for size in GROWN_CLASSES)
    pixels = torch.zeros(count, 3, 1, 1, dtype=torch.uint8)
    return features, ArrayImages(name=name, pixels=pixels, labels=labels, label_names=names)


def prepared_task(task: Evaluation, count: int) -> Callable[[], object]:
    made = {"train": labelled(count, 1, "train"), "test": labelled(count, 2, "test")}
    subject = Subject(
        name="features",
        encoder=torch.nn.Identity(),
        image_size=1,
        normalisation=Normalisation(IMAGENET_MEAN, IMAGENET_STD),
        parts={"train": made["train"][1], "test": made["test"][1]},
        features=lambda part: made[part][0],
    )
    return lambda: task.run(subject)


def growth(counts: tuple[int, ...] = GROWTH) -> None:
    title = f"evaluation of N training and N test images, D={GROWN_DIM}, {GROWN_CLASSES} classes"
    table = Table(title=title, title_justify="left")
    for heading in ("N", "evaluation", "seconds", "relative to the first", "peak MiB more"):
        table.add_column(heading, justify="right")
    for task in (Clustering(), TreeAgreement()):
        first = None
        for count in counts:
            taken = seconds(prepared_task(task, count), repeats=1)
            first = taken if first is None else first
            memory = peak_mebibytes(prepared_task, task, count)
            table.add_row(f"{count:,}", task.name, f"{taken:.1f}", f"{taken / first:.1f}×", f"{memory:.0f}")
        table.add_section()
    Console(width=120).print(table)


def second_task(images: int = 10_000, backbone: str = "resnet18") -> None:
    """The same task in two calls: the second reads the features from disk."""
    with tempfile.TemporaryDirectory() as folder:
        parts = {split: Shapes(images=images, split=split) for split in ("train", "val")}
        table = Table(title=f"KNN of {backbone}, {images:,} + {images:,} images of 32 pixels", title_justify="left")
        for heading in ("call", "seconds"):
            table.add_column(heading, justify="right")
        for call in ("first", "second"):
            start = time.perf_counter()
            options: dict[str, Any] = {
                "data": parts["train"],
                "test_data": parts["val"],
                "cache": Path(folder),
                "quiet": True,
            }
            hirl.evaluate(backbone, KNN(), **options)
            table.add_row(call, f"{time.perf_counter() - start:.2f}")
    Console(width=120).print(table)


def main() -> None:
    against_lightly()
    growth()
    second_task()


if __name__ == "__main__":
    main()
