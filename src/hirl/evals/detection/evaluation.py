"""The evaluation `detection`: an encoder becomes a detector, learns boxes and masks, and is scored by COCO's AP."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hirl.data.annotations.annotated_images import DetectionSet, check_parts
from hirl.evals.base import Evaluation, Needs, Part, Result, Row, Subject
from hirl.files import atomic_write, expanded
from hirl.seeds import Stream, mix_seed
from hirl.terminal.figures import Figure, Kind

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from hirl.data.sources.image_set import ImageSet
    from hirl.evals.detection.detector import Detector
    from hirl.evals.detection.predictions import Prediction
    from hirl.evals.detection.schedule import Schedule
    from hirl.evals.detection.scoring import Precision
    from hirl.features.image_request import ImageRequest

PICTURES = 40  # on the page
HEADLINE = ("AP", "AP50", "AP75")
SCHEDULE = ("epochs", "batch_size", "lr", "drop_path", "short_sides", "long_side")  # arguments that change it


@dataclass(frozen=True, kw_only=True)
class Detection(Evaluation):
    """Average precision of boxes and masks after training a detector on the encoder.

    ResNets become Faster / Mask R-CNN C4, transformers Cascade Mask R-CNN with a feature pyramid, each trained by the
    paper's settings for COCO, brought to the number of images and the batch.

    Args:
        segment: Learn and score masks as well; false for boxes alone.
        epochs: Passes over the training images; by default 24.4 (C4: 180,000 steps of COCO) or 12 (cascade).
        batch_size: Images per step, over all processes and accumulated parts; by default 16, and 32 for transformers
            narrower than ViT-B.
        lr: The rate at the default batch, scaled with the batch; by default 0.02 (C4) or 1e-4 (cascade; 1.6e-4 for
            encoders of MoCo v3).
        source: Whose schedule a cascade follows: "ibot" for iBOT's published run (layer decay 0.75, or 0.8 for ViT-S;
            the rate falls after 8 and 11 of 12 epochs), "paper" for what the HIRL paper prints (0.65; 9 and 11).
        drop_path: Probability that a transformer's last block drops its residual branches in training; by default 0.2,
            and 0.1 for transformers narrower than ViT-B.
        short_sides: Shorter sides of training images in pixels, one of which is drawn; the largest is that of testing.
        long_side: The longer side at most; by default 1333, or in the same ratio to short_sides.
        keep_empty: Learn from images without objects too; false to leave them out, as detectron2 and mmdetection do.
        accumulate: Parts that a batch is cut into if it does not fit at once.
        precision: Of the forward and backward pass.
        regions: Regions per image that the heads learn from.
        proposals: Proposals per image when testing; training uses twice as many.
        channels: Channels of the feature pyramid (cascade).
        hidden: Width of the box heads (cascade).
    """

    name: ClassVar[str] = "detection"
    revision: ClassVar[int] = 2  # anchors at fixed strides, masks pasted with zeros around, iBOT's heads of a cascade
    segment: bool = True
    epochs: float | None = None
    batch_size: int | None = None
    lr: float | None = None
    source: Literal["ibot", "paper"] = "ibot"
    drop_path: float | None = None
    short_sides: tuple[int, ...] | None = None
    long_side: int | None = None
    keep_empty: bool = True
    accumulate: int = 1
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    regions: int = 512
    proposals: int = 1000
    channels: int = 256
    hidden: int = 1024

    @property
    def needs(self) -> Needs:
        return Needs(features=False)

    def open_parts(self, request: ImageRequest) -> dict[Part, ImageSet]:
        from hirl.data.annotations.detection_folder import open_detection

        source, split = _path(request.data), request.split or "train"
        train = open_detection(source, split, segment=self.segment, channels=request.channels)
        if not self.keep_empty:
            train = train.with_objects()
        if request.test_data is None and source.is_file():
            raise ValueError(f"{str(source)!r} is one part alone: name the annotations to test on with --test_data")
        test = open_detection(
            source if request.test_data is None else _path(request.test_data),
            request.test_split or "val",
            segment=self.segment,
            categories=train.categories,
            channels=request.channels,
        )
        check_parts(train, test)
        return {"train": train, "test": test}

    def run(self, subject: Subject) -> Result:
        from hirl.evals.detection.predictions import predict
        from hirl.processes import launch

        train, test = subject.train, subject.test
        assert isinstance(train, DetectionSet)
        assert isinstance(test, DetectionSet)
        fabric = launch(str(subject.device), precision=self.precision)
        detector, schedule = self._detector(subject, train)
        subject.message(f"detection: {detector.kind} on {len(train):,} images, {schedule}")
        if subject.folder is not None and fabric.is_global_zero:
            subject.folder.mkdir(parents=True, exist_ok=True)
        _report_faults(subject, fabric, train, test)
        self._train(subject, fabric, detector, schedule, train)
        predictions = predict(
            detector,
            test,
            schedule,
            fabric=fabric,
            normalisation=subject.normalisation,
            workers=_workers(subject),
            progress=subject.progress,
        )
        result = self._result(test, predictions, schedule)
        if subject.folder is not None and fabric.is_global_zero:
            _write(subject, subject.folder, test, predictions, result)
        return result

    def _detector(self, subject: Subject, train: DetectionSet) -> tuple[Detector, Schedule]:
        import torch

        from hirl.evals.detection.detector import freeze_unused, make_detector
        from hirl.evals.detection.regions import HeadSizes
        from hirl.evals.detection.schedule import published

        sizes = HeadSizes(self.regions, self.proposals, self.channels, self.hidden)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix_seed(subject.seed, Stream.DETECTOR))
            encoder = copy.deepcopy(subject.encoder)
            detector = make_detector(encoder, len(train.categories), segment=self.segment, sizes=sizes)
        freeze_unused(detector)
        given = {name: getattr(self, name) for name in SCHEDULE}
        return detector, published(detector, subject.facts, self.source).for_images(len(train), **given)

    def _train(
        self, subject: Subject, fabric: Fabric, detector: Detector, schedule: Schedule, train: DetectionSet
    ) -> None:
        from hirl.encoders.encoder_file import network_hash
        from hirl.evals.detection.detector_training import Training
        from hirl.evals.detection.samples import TrainingSamples
        from hirl.evals.detection.transforms import Augmentation
        from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm

        augmentation = Augmentation(schedule.short_sides, schedule.long_side, schedule.crops)
        about = [
            self.arguments,
            self.revision,
            schedule.effective,
            subject.seed,
            train.fingerprint,
            vars(subject.normalisation),
        ]
        identity = network_hash(detector.state_dict(), *about)
        synchronise_batch_norm(detector)
        Training(
            fabric=fabric,
            network=detector,
            schedule=schedule,
            samples=TrainingSamples(train, augmentation, seed=subject.seed, segment=self.segment),
            normalisation=subject.normalisation,
            identity=identity,
            checkpoint=None if subject.folder is None else subject.folder / "detector.ckpt",
            accumulate=self.accumulate,
            workers=_workers(subject),
            progress=subject.progress,
            message=subject.message,
        ).fit()

    def _result(self, test: DetectionSet, predictions: list[Prediction], schedule: Schedule) -> Result:
        from hirl.evals.detection.scoring import average_precision

        found = {"box": average_precision(test, predictions, "bbox")}
        if self.segment:
            found["mask"] = average_precision(test, predictions, "segm")
        headline = {
            f"{kind} {name}": figure
            for kind, precision in found.items()
            for name in HEADLINE
            if (figure := _figure(precision.figures[name])) is not None
        }
        return Result(headline, [*_totals(found), *_by_class(found, test)], schedule.effective)


def _workers(subject: Subject) -> int:
    """Processes that read images: by default none on a CPU, which has enough to do, else up to eight."""
    if subject.workers is not None:
        return subject.workers
    return 0 if subject.device.type == "cpu" else min(8, os.cpu_count() or 1)


def _figure(value: float | None) -> Figure | None:
    return None if value is None else Figure(value, Kind.AVERAGE_PRECISION)


def _totals(found: dict[str, Precision]) -> Iterator[Row]:
    for kind, precision in found.items():
        figures = {name: _figure(value) for name, value in precision.figures.items()}
        yield {"of": f"{kind}es" if kind == "box" else f"{kind}s", **figures}


def _by_class(found: dict[str, Precision], test: DetectionSet) -> Iterator[Row]:
    """A row per class that occurs, with the number of its objects."""
    counts = [0] * len(test.categories)
    for instance in test.instances:
        counts[instance.label - 1] += not instance.crowd
    names = list(found["box"].classes)
    for name, count in zip(names, counts, strict=True):
        if count:
            row = {f"{kind} AP": _figure(precision.classes[name]) for kind, precision in found.items()}
            yield {"class": name, "objects": count, **row}


def _path(source: Any) -> Path:
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise ValueError(f"a {kind} has no boxes: give data as a folder in COCO's or Pascal VOC's format")
    return expanded(source)


def _report_faults(subject: Subject, fabric: Fabric, *parts: DetectionSet) -> None:
    """Prints what was dropped from the annotations; all of it is listed in dropped.txt."""
    for part in parts:
        if len(part.faults):
            subject.message(f"detection: {len(part.faults):,} faults in {part.name}\n{part.faults.summary()}")
    faulty = [part.faults for part in parts if len(part.faults)]
    if subject.folder is not None and fabric.is_global_zero and faulty:
        with atomic_write(subject.folder / "dropped.txt") as aside:
            aside.write_text("".join(f"{one}\n" for faults in faulty for _, one in faults.sentences), encoding="utf-8")


def _write(subject: Subject, folder: Path, test: DetectionSet, predictions: list[Prediction], result: Result) -> None:
    """The predictions in COCO's result format, and a page of pictures."""
    from hirl.evals.detection.predictions_page import write_predictions_page
    from hirl.terminal.figures import format_figure

    with atomic_write(folder / "predictions.json") as aside:
        aside.write_text(json.dumps(predictions), encoding="utf-8")
    figures = ", ".join(f"{name} {format_figure(value)}" for name, value in result.headline.items())
    page = folder / "predictions.html"
    write_predictions_page(
        page, test, predictions, count=PICTURES, title=f"{subject.name} on {test.name}", figures=figures
    )
    subject.message(f"detection: predictions beside the truth: {page}")
