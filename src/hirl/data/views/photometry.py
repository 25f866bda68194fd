"""Colour operations on batches with parameters per image; each agrees with torchvision's function of the same name.

All work on float images in [0, 1], (B, 1 or 3, H, W), in place where the name ends in an underscore. On a CPU the cost
is passes over memory, so the operations are few, in place and avoid `where`, which is slow there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import permutations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.data.upload import upload
from hirl.data.views.draws import Ints
from hirl.data.views.parameters import Colours

_ORDERS = tuple(permutations(range(4)))
_LUMA = (0.2989, 0.587, 0.114)  # torchvision's weights
_PIECE = 1 << 18  # floats processed at a time on a CPU: about the size of its second-level cache
_LARGEST_MATRIX_BLUR = 96  # pixels; matrix products measured 5 times faster than shifted sums at 64, slower at 224


def _luma(images: Tensor) -> Tensor:
    """(B, 1, H, W)"""
    red, green, blue = images.split(1, 1)
    return (red * _LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])


def brightness_(images: Tensor, factor: Tensor) -> Tensor:
    return images.mul_(factor).clamp_(0, 1)


def contrast_(images: Tensor, factor: Tensor) -> Tensor:
    # Two sums over short rows instead of one: the result must not depend on the number of threads.
    channel_means = images.sum(-1).sum(-1).div_(images.shape[-1] * images.shape[-2])  # (B, C)
    if images.shape[1] == 3:
        channel_means = _luma(channel_means[:, :, None, None])[:, :, 0, 0]
    grey_mean = channel_means[:, :, None, None]  # (B, 1, 1, 1)
    return images.mul_(factor).add_(grey_mean.mul_(1 - factor)).clamp_(0, 1)


def saturation_(images: Tensor, factor: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    grey = _luma(images).mul_(1 - factor)
    return images.mul_(factor).add_(grey).clamp_(0, 1)


def hue_(images: Tensor, shift: Tensor) -> Tensor:
    """Rotate the hue of HSV by `shift` of a full circle, keeping saturation and value.

    With m and c the smallest channel and the chroma, and r, g, b scaled to (x − m) / c, the distance from red around
    the hexagon is 1 + g + b − r and its side the sign of g − b: no branches are needed in either direction.
    """
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)  # (B, H, W) each
    low = torch.minimum(red, green)
    torch.minimum(low, blue, out=low)
    chroma = torch.maximum(red, green)
    torch.maximum(chroma, blue, out=chroma)
    chroma.sub_(low)
    hue = (green + blue).sub_(red).sub_(low).div_(chroma.clamp_min(1e-12)).add_(1)
    hue.copysign_(green - blue).add_(shift[:, :, :, 0], alpha=6)
    hue.sub_((hue * (1 / 6)).floor_(), alpha=6)  # [0, 6)
    for channel, (centre, sign) in zip((red, green, blue), ((3, 1), (2, -1), (4, -1)), strict=True):
        share = (hue - centre).abs_()
        share = share.sub_(1) if sign > 0 else share.neg_().add_(2)
        torch.addcmul(low, chroma, share.clamp_(0, 1), out=channel)
    return images


def grey(images: Tensor) -> Tensor:
    return _luma(images).expand_as(images) if images.shape[1] == 3 else images


def solarise(images: Tensor) -> Tensor:
    """Invert values of at least one half: the result is always the smaller of x and 1 − x."""
    return torch.minimum(images, 1 - images)


def blur_radius(sigma: float, size: int) -> int:
    """Three standard deviations, limited to what can be reflected at the border."""
    return max(1, min(int(np.ceil(3 * sigma)), size - 1))


def _gauss(sigma: Tensor, distance: Tensor) -> Tensor:
    return torch.exp(-0.5 * (distance / sigma) ** 2)


def blur(images: Tensor, sigma: Tensor, radius: int) -> Tensor:
    """Gaussian blur of 2·radius + 1 taps, sigma (B,) per image, mirrored at the border."""
    height, width = images.shape[-2:]
    if max(height, width) <= _LARGEST_MATRIX_BLUR:
        across = _blur_matrix(sigma, radius, width)
        down = across if height == width else _blur_matrix(sigma, radius, height)
        rows = torch.bmm(images.flatten(1, 2), across.mT).view(images.shape)
        return torch.matmul(down[:, None], rows)
    taps = _gauss(sigma[:, None], torch.arange(radius + 1, device=images.device, dtype=images.dtype))
    taps = taps / (2 * taps.sum(1, keepdim=True) - taps[:, :1])  # (B, radius + 1), centre first
    for axis, pad in ((-1, (radius, radius, 0, 0)), (-2, (0, 0, radius, radius))):
        length = images.shape[axis]
        padded = F.pad(images, pad, mode="reflect")
        images = padded.narrow(axis, radius, length) * taps[:, 0, None, None, None]
        for step in range(1, radius + 1):
            tap = taps[:, step, None, None, None]
            images.addcmul_(padded.narrow(axis, radius - step, length), tap)
            images.addcmul_(padded.narrow(axis, radius + step, length), tap)
    return images


def _blur_matrix(sigma: Tensor, radius: int, length: int) -> Tensor:
    """(B, length, length): the blur as a matrix, including the reflections at the border."""
    at = torch.arange(length, device=sigma.device)
    offsets = torch.arange(-radius, radius + 1, device=sigma.device)
    source = (at[:, None] + offsets).abs()  # (length, taps)
    source = (length - 1) - ((length - 1) - source).abs()
    taps = _gauss(sigma[:, None], offsets.to(sigma.dtype))
    taps = taps / taps.sum(1, keepdim=True)  # (B, taps)
    matrix = sigma.new_zeros(len(sigma), length, length)
    return matrix.scatter_add_(2, source.expand(len(sigma), -1, -1), taps[:, None].expand(-1, length, -1))


def normalise_(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """mean, std (C,)"""
    scale = (1 / std)[:, None, None]
    return images.mul_(scale).sub_(mean[:, None, None] * scale)


def in_unit_range(images: Tensor) -> Tensor:
    """uint8 images of any layout as new contiguous floats in [0, 1]."""
    return images.to(torch.float32, memory_format=torch.contiguous_format, copy=True).mul_(1 / 255)


def coloured(images: Tensor, drawn: Colours, mean: Tensor, std: Tensor) -> Tensor:
    """Apply jitter, grey, blur, solarisation and normalisation to a batch. Float images are changed in place."""
    if images[0].numel() * 2 <= _PIECE or images.device.type != "cpu":
        return _stages_(images if images.is_floating_point() else in_unit_range(images), drawn, mean, std)
    out = torch.empty(images.shape)
    for row in range(len(images)):  # a large image stays in the cache through all stages
        one = slice(row, row + 1)
        single = Colours._make(values[one] for values in drawn)
        out[one] = images[one]
        _stages_(out[one] if images.is_floating_point() else out[one].mul_(1 / 255), single, mean, std)
    return out


def _stages_(images: Tensor, drawn: Colours, mean: Tensor, std: Tensor) -> Tensor:
    portions = list(_portions(images, drawn))
    numbers = np.column_stack((drawn.factors, drawn.sigma)).astype(np.float32)
    sent = upload(torch.from_numpy(numbers), images.device)  # (rows, 5)
    places = _places([rows for _, rows in portions], images.device)
    for (stage, _), place in zip(portions, places, strict=True):
        _put_(images, place, stage(_take(images, place), _take(sent, place)))
    return normalise_(images, mean, std)


_Stage = Callable[[Tensor, Tensor], Tensor]  # images and their factors and sigma, (n, 5) → images


def _portions(images: Tensor, drawn: Colours) -> Iterator[tuple[_Stage, Ints]]:
    """All that is done to the batch, in order: an operation, and the rows that it is applied to at once."""
    for jitters, rows in _jitter_groups(drawn, by_order=images.device.type == "cpu"):
        for some in _pieces(images, rows):
            effective = [which for which in jitters if (drawn.factors[some, which] != _IDENTITIES[which]).any()]
            if effective:
                yield partial(_jitter_, jitters=effective), some
    for rows in _pieces(images, np.flatnonzero(drawn.grey)):
        yield lambda some, _: grey(some), rows
    blurred = np.flatnonzero(drawn.sigma)
    # Rows of equal blur radius are processed together; the result does not depend on the other rows.
    radii = np.array([blur_radius(s, min(images.shape[-2:])) for s in drawn.sigma[blurred]], dtype=np.int64)
    for radius in np.unique(radii):
        for rows in _pieces(images, blurred[radii == radius]):
            yield partial(_blurred, radius=int(radius)), rows
    for rows in _pieces(images, np.flatnonzero(drawn.solarise)):
        yield lambda some, _: solarise(some), rows


_JITTERS = (brightness_, contrast_, saturation_, hue_)
_IDENTITIES = (1.0, 1.0, 1.0, 0.0)


def _jitter_groups(drawn: Colours, *, by_order: bool) -> Iterator[tuple[tuple[int, ...], Ints]]:
    """Jitters, and the rows that they are applied to one after the other.

    By order, rows with the same order of all four stay together: a CPU keeps them in its cache. Otherwise those with
    the same jitter at the same place do: 16 groups instead of 24 times four, for a GPU to launch fewer kernels.
    """
    jittered = np.flatnonzero(drawn.order >= 0)
    if by_order:
        for order in np.unique(drawn.order[jittered]):
            yield _ORDERS[order], np.flatnonzero(drawn.order == order)
        return
    sequences = np.array(_ORDERS)[drawn.order[jittered]]  # (rows, 4)
    for place in range(4):
        for which, identity in enumerate(_IDENTITIES):
            rows = jittered[sequences[:, place] == which]
            yield (which,), rows[drawn.factors[rows, which] != identity]


def _jitter_(images: Tensor, numbers: Tensor, *, jitters: Iterable[int]) -> Tensor:
    for which in jitters:
        _JITTERS[which](images, numbers[:, which, None, None, None])
    return images


def _blurred(images: Tensor, numbers: Tensor, *, radius: int) -> Tensor:
    return blur(images, numbers[:, 4], radius)


def _pieces(images: Tensor, rows: Ints) -> Iterator[Ints]:
    """The rows in portions that fit the cache of a CPU; all at once on other devices."""
    most = max(1, _PIECE // images[0].numel()) if images.device.type == "cpu" else len(images)
    for start in range(0, len(rows), most):
        yield rows[start : start + most]


_Place = slice | Tensor


def _places(portions: list[Ints], device: torch.device) -> list[_Place]:
    """Each portion's rows: a slice if there is only one, else indices on the device, sent there all at once."""
    together = upload(torch.from_numpy(np.concatenate((np.empty(0, np.int64), *portions))), device)
    indices = together.split([len(rows) for rows in portions])
    return [
        slice(int(rows[0]), int(rows[0]) + 1) if len(rows) == 1 else index
        for rows, index in zip(portions, indices, strict=True)
    ]


def _take(values: Tensor, place: _Place) -> Tensor:
    """The rows at `place`; a view of the tensor if it is a slice."""
    return values[place] if isinstance(place, slice) else values.index_select(0, place)


def _put_(images: Tensor, place: _Place, values: Tensor) -> None:
    if isinstance(place, slice):
        target = images[place]
        if target.data_ptr() != values.data_ptr() or target.stride() != values.stride():
            target.copy_(values)
    else:
        images.index_copy_(0, place, values)
