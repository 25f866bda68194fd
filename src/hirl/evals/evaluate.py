"""`hirl.evaluate`: opens an encoder and images, runs evaluations on them and stores results with their protocol."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hirl import evals, ranks
from hirl.data.views.view import check_interpolation
from hirl.evals.base import Evaluation, Result, Subject
from hirl.evals.protocol import Record, protocol_of
from hirl.evals.result_tables import print_headline, print_message, print_result
from hirl.evals.subject import check_images_named, make_subject, tree_of, without_unreadable
from hirl.features.extractor import Extractor
from hirl.features.feature_cache import FeatureCache
from hirl.features.image_request import NoLabels, request_images
from hirl.features.open_encoder import open_encoder
from hirl.features.preprocessing import Preprocessing, check_preprocessing, describe, find_device, preprocessing_for
from hirl.methods.base import Method
from hirl.methods.facts import Facts
from hirl.processes import PATIENCE, is_first, launch, process_count, run_on_first
from hirl.runs.folder import RunFolder
from hirl.runs.representations import method_facts
from hirl.terminal.progress import no_progress, progress_bars

DEFAULT_TASKS = ("knn", "clustering", "tree", "linear")
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
    interpolation: Literal["bilinear", "bicubic"] | None = None,
    method: str | type[Method] | None = None,
    seed: int = 0,
    device: str | None = None,
    devices: int = 1,
    workers: int | None = None,
    out: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = AUTO,
    reuse: bool = False,
    quiet: bool = False,
) -> dict[str, Result]:
    """Evaluate an encoder and return its results by task. Every encoder gets the same protocol.

    Args:
        subject: A run or its folder, a checkpoint in it, a file of weights, a timm name or `torchvision:NAME` for its
            published weights, either after `random:` for random ones, or a module.
        tasks: Names, or evaluations with arguments of their own; by default knn, clustering, tree and linear, of which
            those that need labels are skipped where there are none.
        data: The labelled images; by default those the run was trained on.
        test_data: The images to test on, if they are not another part of the same data.
        split: The split to learn from and to search; by default the training split.
        test_split: The part to test on; by default val.
        backbone: The network's timm or torchvision name, for a file of weights that does not name it.
        backbone_args: Further arguments of the timm or torchvision network.
        weights: A file of weights for a network given by name; by default its published ones.
        image_size: Side of the images in pixels; by default the run's, else that of small images, else 224; with
            published weights at least 96, and at most theirs.
        channels: Channels of the images; by default the run's, else 3.
        mean: Subtracted from each channel, in [0, 1]; by default as in the encoder's training, else ImageNet's.
        std: Divides each channel.
        interpolation: How images are resized; by default as the source of the weights or the publication of the run's
            method does, bicubic for DINO and iBOT, else bilinear.
        method: The class of the run's method, if it is not part of hirl.
        seed: Seed of all random numbers.
        device: cpu, cuda …; by default a GPU if there is one.
        devices: Number of devices on this machine, each with a process of its own. Under torchrun or SLURM, leave it
            out.
        workers: Processes that read images.
        out: The folder for results; by default the run's, else none are written.
        cache: The folder for features; by default the run's, else none are kept; null for none.
        reuse: Take a result stored for exactly the same protocol instead of computing it again.
        quiet: Print no tables and no progress.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}, but must be at least 0")
    requested = [
        task if isinstance(task, Evaluation) else evals.find_evaluation(task)() for task in tasks or DEFAULT_TASKS
    ]
    names = tuple(task.name for task in requested)
    if len(set(names)) < len(names):
        raise ValueError(
            f"the same task is named twice in {', '.join(names)}, but results are returned by task: evaluate each in a "
            "call of its own"
        )
    for task in requested:
        check_images_named(task, data, "data")
    usual = names == DEFAULT_TASKS  # the command line passes the default tasks with their options
    network: dict[str, Any] = {"backbone": backbone, "backbone_args": backbone_args, "weights": weights}
    encoder = open_encoder(subject, **network, channels=channels, method=method)
    if method is not None and encoder.run is None:
        raise ValueError(f"method is {method!r}, but must not be given here: only a run has one")
    check_preprocessing(encoder, image_size=image_size, channels=channels, mean=mean, std=std)
    request = request_images(encoder, data, test_data=test_data, split=split, test_split=test_split, channels=channels)
    folder = _results_folder(encoder.run, out)
    features = FeatureCache(_cache_folder(encoder.run, cache))
    if interpolation is not None:
        check_interpolation("interpolation", interpolation)
    facts = Facts() if encoder.run is None else method_facts(encoder.run, method)
    resize = interpolation or (facts.interpolation if encoder.format is None else encoder.format.interpolation)
    where = find_device(device)
    if devices != 1 or process_count() > 1:  # alone, an evaluation without training does not need Lightning
        where = launch(str(where), devices=devices, timeout=PATIENCE).device
    extractors: dict[Preprocessing, Extractor] = {}
    tree = tree_of(encoder)
    quiet = quiet or not is_first()

    with nullcontext(no_progress) if quiet else progress_bars() as progress:

        def prepare(task: Evaluation) -> tuple[Subject, Extractor]:
            """What the task runs on, checked."""
            parts = task.open_parts(request)
            first = parts.get("train", parts["test"])
            given: dict[str, Any] = {"image_size": image_size, "mean": mean, "std": std, "workers": workers}
            preprocessing = preprocessing_for(encoder, first, **given, device=where, interpolation=resize)
            if preprocessing not in extractors:  # tasks on the same images share their features
                extractors[preprocessing] = Extractor(
                    encoder, preprocessing, features, method=method, progress=progress
                )
                if encoder.provenance is not None and not quiet:
                    print_message(describe(encoder, preprocessing))
            extractor = extractors[preprocessing]
            if task.needs.features:
                extractor.check(first.channels)
            with _prefix_errors(task):
                ready = make_subject(task, extractor, parts, tree, facts, seed)
                if task.needs.run and encoder.run is not None and not reuse:  # a stored result needs no heads
                    extractor.load_heads()
            return ready, extractor

        prepared: list[tuple[Evaluation, Subject, Extractor]] = []  # all before the first one runs
        unlabelled: dict[str, NoLabels] = {}
        for task in requested:
            try:
                prepared.append((task, *prepare(task)))
            except NoLabels as error:
                if not usual:
                    raise
                unlabelled[task.name] = error
        _report_skipped(unlabelled, nothing_left=not prepared, quiet=quiet)
        return {
            task.name: _run_task(task, on, extractor, folder, reuse=reuse, quiet=quiet)
            for task, on, extractor in prepared
        }


def _run_task(
    task: Evaluation, subject: Subject, extractor: Extractor, folder: Path | None, *, reuse: bool, quiet: bool
) -> Result:
    """With `reuse` the stored result of the same protocol, if there is one; else a new one, which is stored."""
    record = None if folder is None else Record(folder, protocol_of(task, subject, extractor))
    if record is not None:
        known = run_on_first(record.find) if reuse else None
        if known is not None:
            if not quiet:
                print_headline(task.name, known, note="stored earlier")
            return known
        subject = replace(subject, folder=record.folder)
    if task.needs.features:
        if ranks.world().size > 1:
            # Extract all that the task may need by all processes; the first one keeps it.
            for images in subject.parts.values():
                extractor.features(images)
                if task.needs.run and extractor.encoder.run is not None:
                    extractor.representations(images)
        subject = without_unreadable(subject, extractor)
    if not quiet:
        subject = replace(subject, message=print_message)
    with _prefix_errors(task):
        # Features are with the first process. Training is shared by all of them.
        result = run_on_first(lambda: task.run(subject)) if task.needs.features else task.run(subject)
    if record is not None and is_first():
        record.write(result, extractor)
    if not quiet:
        print_result(task.name, subject, result, sized=task.needs.features)
    return result


def _report_skipped(unlabelled: dict[str, NoLabels], *, nothing_left: bool, quiet: bool) -> None:
    """Print which tasks are skipped because they need labels; a ValueError if none is left."""
    if not unlabelled:
        return
    tasks, images = ", ".join(unlabelled), next(iter(unlabelled.values())).name
    if nothing_left:
        raise ValueError(
            f"{images} has no labels, but {tasks} need them: name labelled images with --data, or see what was learnt "
            "without labels by hirl embed and hirl cluster"
        )
    if not quiet:
        print_message(f"skipped, because {images} has no labels: {tasks}")


@contextmanager
def _prefix_errors(task: Evaluation) -> Iterator[None]:
    try:
        yield
    except NoLabels as error:
        raise NoLabels(error.name, error.advice, task.name) from error
    except ValueError as error:
        raise ValueError(f"{task.name}: {error}") from error


def _results_folder(run: RunFolder | None, out: str | os.PathLike[str] | None) -> Path | None:
    """`out`, or the run's results; None: nothing is written."""
    if out is None:
        return None if run is None else Path(run.results_folder)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"cannot write results to {str(folder)!r}: it is not a folder")
    return folder


def _cache_folder(run: RunFolder | None, cache: str | os.PathLike[str] | None) -> Path | None:
    if cache == AUTO:
        return None if run is None else Path(run.features_folder)
    if cache is not None and Path(cache).is_file():
        raise ValueError(f"cache is {os.fspath(cache)!r}, which is a file, but must be a folder")
    return None if cache is None else Path(cache)
