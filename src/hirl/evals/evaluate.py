"""Assembles an encoder, its images and the evaluations asked for, and runs them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache as remembered
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hirl import evals
from hirl.data.loader import normalisation
from hirl.data.sources import Skipped, in_memory, open_images
from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.splits import NoParts
from hirl.evals.base import Evaluation, Part, Result, Subject
from hirl.evals.feature_cache import Shown, Store, extracted
from hirl.evals.report import result_tables
from hirl.methods.base import Method
from hirl.runs.folder import Run
from hirl.runs.open_encoder import Encoder, device_of, open_encoder
from hirl.runs.representations import load_trained
from hirl.runs.results import results_folder, write_result
from hirl.terminal.progress import Progress, no_progress, progress_bars

DEFAULT_TASKS = ("knn", "clustering", "hierarchy", "linear")
LARGE_IMAGE = 224
AUTO = "auto"


def evaluate(
    subject: Any,
    *tasks: str | Evaluation,
    data: Any = None,
    test_data: Any = None,
    split: str | None = None,
    test_split: str | None = None,
    backbone: str | None = None,
    backbone_args: dict[str, Any] | None = None,
    weights: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    method: str | type[Method] | None = None,
    seed: int = 0,
    device: str | None = None,
    workers: int | None = None,
    out: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = AUTO,
    quiet: bool = False,
) -> dict[str, Result]:
    """The figures of an encoder, by task: the same protocol for each, written down beside them.

    Args:
        subject: A run or its folder, a file of weights, a timm name, `torchvision:NAME`, or a module.
        tasks: Names, or evaluations with arguments of their own; by default knn, clustering, hierarchy and linear.
        data: The labelled images; by default those the run was trained on.
        test_data: The images to test on, where they are not another part of the same data.
        split: The part that is learnt from and searched; by default the training part.
        test_split: The part that is tested; by default val.
        backbone: The network's timm or torchvision name, for a file of weights that does not say it.
        backbone_args: What timm or torchvision is told beside the name.
        weights: A file for a network that was given by name; by default its weights are random.
        image_size: The side of the images the encoder sees; by default the run's, else that of small images or 224.
        channels: Of the images; by default the run's, else 3.
        mean: What is taken off each channel, in [0, 1]; by default what the run was trained with, else ImageNet's.
        std: What is divided out of each channel.
        method: The class of the run's method, where that is not of hirl.
        seed: Of everything that is drawn.
        device: cpu, cuda …; by default a GPU where there is one.
        workers: Processes that read images.
        out: The folder for the figures; by default the run's results, else nothing is written.
        cache: The folder that keeps features; by default the run's, else none is kept; null: never.
        quiet: No tables and no bars.
    """
    asked = [_evaluation(task) for task in tasks or DEFAULT_TASKS]
    if seed < 0:
        raise ValueError(f"seed must be at least 0, not {seed}")
    opened = open_encoder(subject, backbone=backbone, backbone_args=backbone_args, weights=weights, channels=channels)
    if method is not None and opened.run is None:
        raise ValueError(f"method {method!r} cannot be given here: only a run has one")
    _check_fixed(opened, image_size=image_size, channels=channels, mean=mean, std=std)
    train, test = _parts(opened, data, test_data, split, test_split, opened.channels or channels or 3)
    folder = results_folder(opened.run, out, data, train)
    store = Store(_cache_folder(opened.run, cache))

    results: dict[str, Result] = {}
    with nullcontext(no_progress) if quiet else progress_bars() as progress:
        seen = _subject(opened, train, test, image_size, mean, std, method, seed, device, workers, store, progress)
        for task in asked:
            try:
                results[task.name] = task.run(seen)
            except ValueError as error:
                raise ValueError(f"{task.name}: {error}") from error
            if folder is not None:
                write_result(folder, task, results[task.name], seen, opened)
            if not quiet:
                result_tables(task.name, f"{seen.name} on {test.name}", results[task.name])
    return results


def _evaluation(task: str | Evaluation) -> Evaluation:
    if isinstance(task, Evaluation):
        return task
    if task not in evals.EVALUATIONS:
        raise ValueError(f"there is no evaluation {task!r}: choose from {', '.join(evals.EVALUATIONS)}")
    return evals.EVALUATIONS[task]()


def _check_fixed(opened: Encoder, **given: Any) -> None:
    """What an encoder was trained with cannot be told otherwise: the figures would be those of a misuse."""
    for name, value in given.items():
        own = getattr(opened, name)
        if value is not None and own is not None and value != own:
            raise ValueError(f"{name} is {value}, but {opened.name} was trained with {own}: leave it out")


def _parts(
    opened: Encoder, data: Any, test_data: Any, split: str | None, test_split: str | None, channels: int
) -> tuple[ImageSet, ImageSet]:
    """The images learnt from and those tested on, small ones read into memory."""
    if data is None:
        if opened.run is None:
            raise ValueError(f"{opened.name} does not say on which images: give data, a folder or a known name")
        data = opened.run.config["data"]
        split = split if split is not None else opened.run.config.get("split")
    elsewhere = test_data is not None
    wanted = test_split if test_split is not None or elsewhere else "val"
    train = _open(data, split, channels)
    try:
        test = _open(test_data if elsewhere else data, wanted, channels)
    except NoParts as error:
        if elsewhere or test_split is not None:
            raise
        lacks = "has no labels, and " if train.labels is None else "has "
        raise ValueError(
            f"{train.name} {lacks}no parts such as train and val, but an evaluation learns from labelled images and is "
            "tested on others. Name the images to test on with test_data."
        ) from error
    except ValueError as error:
        if elsewhere or test_split is not None:
            raise
        raise ValueError(f"{error} Name the images to test on with test_data or test_split.") from error
    return train, test


def _open(source: Any, split: str | None, channels: int) -> ImageSet:
    skipped = Skipped()
    images = in_memory(open_images(source, split=split, channels=channels), skipped=skipped)
    if len(skipped):
        warnings.warn(skipped.summary(images.name), stacklevel=2)
    return images


def _subject(
    opened: Encoder,
    train: ImageSet,
    test: ImageSet,
    image_size: int | None,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
    method: str | type[Method] | None,
    seed: int,
    device: str | None,
    workers: int | None,
    store: Store,
    progress: Progress,
) -> Subject:
    where = device_of(device)
    own = LARGE_IMAGE if train.pixels is None else int(min(train.pixels.shape[-2:]))
    size = next(one for one in (opened.image_size, image_size, own) if one is not None)
    normal = normalisation(train, opened.mean or _tuple(mean), opened.std or _tuple(std))
    network = opened.network.to(where)
    _check_takes(network, opened.name, train.channels, size, where)
    shown = Shown(size, normal, where, workers)
    run = opened.run

    def made(kind: str, part: Part, network: nn.Module, sha256: str) -> Tensor:
        images = train if part == "train" else test
        what = f"{kind} of {images.name}"
        return store.kept(
            kind, sha256, shown, images, lambda: extracted(network, images, shown, what=what, progress=progress)
        )

    @remembered
    def features(part: Part) -> Tensor:
        return made("features", part, network, opened.sha256)

    return Subject(
        name=opened.name,
        encoder=network,
        image_size=size,
        normalisation=normal,
        train=train,
        test=test,
        features=features,
        representations=None if run is None else _representations(run, method, where, made),
        tree=run.tree if run is not None and run.tree_file.is_file() else None,
        method=None if run is None else run.config["method"]["class_path"].rsplit(".", 1)[-1],
        seed=seed,
        device=where,
        progress=progress,
    )


def _representations(
    run: Run,
    method: str | type[Method] | None,
    device: torch.device,
    made: Callable[[str, Part, nn.Module, str], Tensor],
) -> Callable[[Part], Tensor]:
    """z⁰…zᴸ of a part; the run's heads are loaded when they are first asked for."""

    @remembered
    def trained() -> tuple[nn.Module, str]:
        network = load_trained(run, method=method)
        return network.to(device), network.sha256

    @remembered
    def representations(part: Part) -> Tensor:
        return made("representations", part, *trained())

    return representations


def _tuple(values: Any) -> tuple[float, ...] | None:
    return None if values is None else tuple(values)


@torch.inference_mode()
def _check_takes(network: nn.Module, name: str, channels: int, size: int, device: torch.device) -> None:
    """Shows the encoder an image of the size in question: many can take but one."""
    try:
        features = network(torch.zeros(2, channels, size, size, device=device))
    except (AssertionError, RuntimeError, ValueError, TypeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = lines[0].rstrip(".")
        raise ValueError(
            f"{name} cannot take images of {size} × {size} pixels in {channels} channels: {reason}; say its own "
            "image_size"
        ) from error
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"{name} must give pooled features of shape (B, width), but gives {shape} for 2 images")


def _cache_folder(run: Run | None, cache: str | os.PathLike[str] | None) -> Path | None:
    if cache == AUTO:
        return None if run is None else run.features_folder
    return None if cache is None else Path(cache)
