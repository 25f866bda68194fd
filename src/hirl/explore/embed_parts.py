"""Embeds many images in parts that any number of processes write: on one machine, on several, or on Ray."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hirl.claims import share_tasks
from hirl.data.sources.image_set import ImageSet, Subset
from hirl.explore.embed import open_extractor
from hirl.features.embedding import embed_images
from hirl.features.extractor import Extractor
from hirl.features.feature_parts import FeatureParts, is_parts, make_parts, open_parts
from hirl.terminal.progress import no_progress, progress_bars

PART = 50_000  # images
WRITTEN = ("features", "path")  # and z0 … zL


def embed_parts(
    subject: Any,
    data: Any = None,
    *,
    out: str | os.PathLike[str],
    parts: int | None = None,
    ray: int = 0,
    quiet: bool = False,
    **options: Any,
) -> FeatureParts:
    """Embed images with an encoder and write them to the folder `out`, in half precision.

    The same call in other processes, on this or other machines, shares the work: each takes the next unclaimed part.
    Existing parts are not computed again.

    Args:
        subject: The encoder, as for `hirl.embed`.
        data: The images; by default those the run was trained on.
        out: The folder.
        parts: Number of parts; by default one per 50,000 images.
        ray: Number of workers on a Ray cluster; 0 for this process alone.
        quiet: Print no progress.
        options: Further arguments of `hirl.embed`.
    """
    folder = Path(out)
    with nullcontext(no_progress) if quiet else progress_bars() as progress:
        extractor, images = open_extractor(subject, data, **options)
        if parts is None:
            begun = is_parts(folder)
            parts = len(open_parts(folder, complete=False).rows) if begun else -(-len(images) // PART)
        made = make_parts(folder, len(images), parts, _about(extractor, images))
        shown = -1

        def show() -> None:
            nonlocal shown
            if shown < (done := sum(map(made.is_done, made.names))):
                progress("parts", done, len(made.names))
                shown = done

        show()
        if ray:
            for _ in _on_ray(made, ray, {"subject": subject, "data": data, **options}):
                show()
        for name in share_tasks(made.names, folder, made.is_done):
            write_part(made, name, extractor, images)
            show()
    return made


def write_part(parts: FeatureParts, name: str, extractor: Extractor, images: ImageSet) -> None:
    place = parts.images(name)
    part = Subset(images, torch.arange(place.start, place.stop))
    arrays = embed_images(extractor, part).arrays(part)
    extractor.forget(part)
    wanted = [kind for kind in arrays if kind in WRITTEN or (kind[0] == "z" and kind[1:].isdigit())]
    parts.write(name, {kind: arrays[kind] for kind in wanted})


def _about(extractor: Extractor, images: ImageSet) -> dict[str, Any]:
    """What the features depend on."""
    preprocessing = extractor.preprocessing
    return {
        "encoder": extractor.encoder.name,
        "network": extractor.encoder.sha256,
        "size": preprocessing.size,
        "normalisation": asdict(preprocessing.normalisation),
        "interpolation": preprocessing.interpolation,
        "crop": preprocessing.crop,
        "images": extractor.identity(images),
    }


class _PartWorker:
    """An actor of Ray Data: opens the encoder and the images once, and writes parts."""

    def __init__(self, directory: str, folder: str, opening: dict[str, Any]) -> None:
        os.chdir(directory)  # so that relative paths name the same files as for the command
        self.parts = open_parts(Path(folder), complete=False)
        self.extractor, self.images = open_extractor(**opening)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for name in batch["part"]:
            if not self.parts.is_done(str(name)):  # a worker may have been lost after it wrote the part
                write_part(self.parts, str(name), self.extractor, self.images)
        return batch


def _on_ray(parts: FeatureParts, workers: int, opening: dict[str, Any]) -> Iterator[None]:
    """Write the missing parts by workers on a Ray cluster; yields once per part. Ray repeats those of lost workers."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ValueError("--ray needs the library ray, which is not installed: pip install 'hirl[ray]'") from error
    missing = [name for name in parts.names if not parts.is_done(name)]
    if not missing:
        return
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    logging.getLogger("ray.data").setLevel(logging.WARNING)  # otherwise it prints its plan and its progress
    ray.data.DataContext.get_current().enable_progress_bars = False  # hirl has its own
    resources = ray.cluster_resources()
    written = ray.data.from_items([{"part": name} for name in missing], override_num_blocks=len(missing)).map_batches(
        _PartWorker,
        fn_constructor_kwargs={"directory": str(Path.cwd()), "folder": str(parts.folder), "opening": opening},
        batch_size=1,
        # A part takes minutes: none must queue behind another while a worker is idle.
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(missing)), max_tasks_in_flight_per_actor=1),
        num_cpus=1,
        num_gpus=1 if resources.get("GPU") else 0,
    )
    try:
        for _ in written.iter_rows():
            yield
    except ray.exceptions.RayError as error:
        raise ValueError(f"a Ray worker could not write its part: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """The worker's own error, without Ray's traceback."""
    inner = getattr(error, "cause", None) or error.__cause__
    return _cause(inner) if isinstance(inner, BaseException) else str(error).strip().splitlines()[-1]
