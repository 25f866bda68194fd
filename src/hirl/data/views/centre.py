"""From indices to the images as evaluation sees them: resized, the central square, the same in every epoch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hirl.data.sources.image_set import ImageSet
from hirl.data.sources.skipped import Skipped, read_or_replace, stand_ins
from hirl.data.upload import upload
from hirl.data.views.draws import Ints
from hirl.data.views.geometry import interleaved, resize
from hirl.data.views.normalisation import Normalisation
from hirl.data.views.photometry import in_unit_range, normalise_
from hirl.data.views.render import Batch, Piece, is_batched

# A JPEG is read at no less than this many times the shorter side after resizing: at less, the decoder's own reduction
# changes features noticeably (docs/data.md).
READ_AT = 2
LONGEST = 32  # times the shorter side: what lies farther from the centre is cut off before resizing


@dataclass(eq=False)
class CentreRenderer:
    """Images for evaluation: the shorter side resized to `resize`, then the central square of `size`."""

    images: ImageSet
    size: int
    resize: int
    interpolation: str
    normalisation: Normalisation
    device: torch.device
    strict: bool

    def __post_init__(self) -> None:
        self._skipped = Skipped()
        self._actual = None if self.images.readable is None else stand_ins(self.images.readable)

    def render_in_worker(self, indices: Ints, epoch: int) -> Piece:  # noqa: ARG002 (equal in every epoch)
        if is_batched(self.images):
            assert self.images.pixels is not None
            where = torch.from_numpy(indices)
            actual = where if self._actual is None else self._actual[where]
            return Piece(actual, [self._centre(self.images.pixels[actual])[None]], [None], [], actual != where)
        bad_before = len(self._skipped)
        crops = torch.empty(1, len(indices), self.images.channels, self.size, self.size, dtype=torch.uint8)
        real = indices.copy()
        for row, index in enumerate(indices):
            image, real[row] = read_or_replace(
                self.images, int(index), skipped=self._skipped, strict=self.strict, shorter=READ_AT * self.resize
            )
            crops[0, row] = self._centre(interleaved(image))[0]
        bad = list(self._skipped) if len(self._skipped) > bad_before else []
        return Piece(torch.from_numpy(real), [crops], [None], bad, torch.from_numpy(real != indices))

    def finish_on_device(self, piece: Piece, epoch: int) -> Batch:  # noqa: ARG002
        picture = in_unit_range(piece.groups[0][0])
        views = [normalise_(picture, *self.normalisation.tensors(self.device))]
        return Batch(upload(piece.index, self.device), views, [None], piece.replaced)

    def _centre(self, images: Tensor) -> Tensor:
        images = _without_far_ends(images)
        height, width = images.shape[-2:]
        if min(height, width) != self.resize:
            longer = int(self.resize * max(height, width) / min(height, width))
            height, width = (self.resize, longer) if height <= width else (longer, self.resize)
            images = resize(images, height, width, self.interpolation)
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        return images[..., top : top + self.size, left : left + self.size]


def _without_far_ends(images: Tensor) -> Tensor:
    """The central part of images that are far longer than wide; others unchanged.

    A line of 20,000 pixels would be resized to millions, of which the crop needs the few in the centre.
    """
    side = images.shape[-2:].index(max(images.shape[-2:])) - 2
    longer, shorter = images.shape[side], min(images.shape[-2:])
    kept = LONGEST * shorter + (longer - LONGEST * shorter) % 4  # the centre stays, also when halves are rounded
    return images.narrow(side, (longer - kept) // 2, kept) if kept < longer else images
