"""What a network makes of a set of images shown whole: made once per network and data set, and kept on disk."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hirl.data.loader import EvaluationLoader
from hirl.data.sources.files import FileImages
from hirl.data.sources.image_set import ImageSet
from hirl.data.views.render import Normalisation
from hirl.evals.base import CPU
from hirl.files import atomic_write
from hirl.terminal.progress import Progress

FORMAT = "hirl features 1"  # part of the key: raise it whenever the same images would be shown in another way


@dataclass(frozen=True)
class Shown:
    """How images are shown: resized and cropped to `size` about their centre, then normalised."""

    size: int
    normalisation: Normalisation
    device: torch.device = CPU
    workers: int | None = None

    def loader(self, images: ImageSet) -> EvaluationLoader:
        mean, std = self.normalisation.mean, self.normalisation.std
        return EvaluationLoader(images, size=self.size, mean=mean, std=std, device=self.device, workers=self.workers)


@dataclass(frozen=True)
class Store:
    """Features on disk, one safetensors file per network, way of showing and data set. None: nothing is kept."""

    folder: Path | None

    def kept(self, kind: str, network: str, shown: Shown, images: ImageSet, make: Callable[[], Tensor]) -> Tensor:
        """What was made before for the same key, or what `make` gives now; `network` is its weights' hash."""
        if self.folder is None:
            return make()
        key = {
            "format": FORMAT,
            "kind": kind,
            "network": network,
            "size": shown.size,
            "normalisation": asdict(shown.normalisation),
            "images": identity(images),
        }
        about = json.dumps(key, sort_keys=True)
        file = self.folder / f"{kind}-{hashlib.sha256(about.encode()).hexdigest()[:20]}.safetensors"
        found = _read(file, about)
        if found is None:
            from safetensors.torch import save_file

            found = make()
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(file) as aside:
                save_file({"features": found.contiguous()}, aside, metadata={"about": about})
        return found


def _read(file: Path, about: str) -> Tensor | None:
    """The features of a file that is about just this; None where there is none, or it is damaged."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            return opened.get_tensor("features") if (opened.metadata() or {}).get("about") == about else None
    except SafetensorError:
        return None


@torch.no_grad()
def extracted(network: nn.Module, images: ImageSet, shown: Shown, *, what: str, progress: Progress) -> Tensor:
    """(N, …): what the network gives for every image, in eval mode, in their order, on the CPU."""
    loader = shown.loader(images)
    training = network.training
    network.eval()
    made: Tensor | None = None
    done = 0
    for batch in loader:
        part = network(batch.views[0]).float().cpu()
        if made is None:
            made = torch.empty(len(images), *part.shape[1:])
        made[done : done + len(part)] = part
        done += len(part)
        progress(what, done, len(images))
    network.train(training)
    assert made is not None  # a loader has at least one image
    if len(loader.skipped):
        warnings.warn(
            f"{len(loader.skipped)} of the {len(images):,} images of {images.name} could not be read and the next that "
            f"could stood in for them; the first: {next(iter(loader.skipped))}",
            stacklevel=2,
        )
    unsound = ~made.flatten(1).isfinite().all(1)
    if unsound.any():
        first = int(unsound.nonzero()[0])
        raise ValueError(
            f"the network gives features that are NaN or infinite for {int(unsound.sum()):,} of the {len(images):,} "
            f"images of {images.name}, the first being {images.path(first)}: its weights are not sound"
        )
    return made


def identity(images: ImageSet) -> dict[str, Any]:
    """What tells one set of images from another: pixels in memory to the bit, files by name, size and time."""
    found: dict[str, Any] = {"name": images.name, "count": len(images), "channels": images.channels}
    if images.labels is not None:
        found["labels"] = _sha256(images.labels)
    if images.pixels is not None:
        found["pixels"] = f"{tuple(images.pixels.shape)} {_sha256(images.pixels)}"
    elif isinstance(images, FileImages):
        files = hashlib.sha256()
        for index in range(len(images)):
            path = images.path(index)
            try:
                status = Path(path).stat()
                files.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
            except OSError:  # it will be found unreadable when it is read
                files.update(f"{path}\0\n".encode(errors="surrogateescape"))
        found["files"] = files.hexdigest()
    return found


def _sha256(tensor: Tensor) -> str:
    return hashlib.sha256(np.ascontiguousarray(tensor.cpu().numpy()).data).hexdigest()
