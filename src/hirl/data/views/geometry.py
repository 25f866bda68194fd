"""Crop, flip and antialiased resize: image by image for decoded files, by matrix products for batches of an array.

Both agree with torchvision's `resized_crop(antialias=True)`, the first exactly, the second up to uint8 rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.data.upload import upload
from hirl.data.views import View
from hirl.data.views.parameters import Boxes

_PIECE = 1 << 18  # floats cropped at a time on a CPU, so that images and weights stay in its cache


def interleaved(image: Tensor) -> Tensor:
    """(1, C, H, W) in channels-last layout, which torch resizes several times faster."""
    return image[None].contiguous(memory_format=torch.channels_last)


def resize(image: Tensor, height: int, width: int, interpolation: str) -> Tensor:
    """(B, C, H, W) uint8 → (B, C, height, width) uint8"""
    return F.interpolate(image, size=(height, width), mode=interpolation, antialias=True)


def cropped(image: Tensor, box: Boxes, view: View) -> Tensor:
    """One crop of (1, C, H, W) uint8, resized and possibly flipped: (C, size, size) uint8."""
    top, left = int(box.top), int(box.left)
    crop = image[..., top : top + int(box.height), left : left + int(box.width)]
    crop = resize(crop, view.size, view.size, view.interpolation)[0]
    return crop.flip(-1) if box.flip else crop


def _filter(distance: Tensor, interpolation: str) -> Tensor:
    """Pillow's triangle and cubic (a = −½) filters at a distance ≥ 0, without branches: each term ends at 0."""
    if interpolation == "bilinear":
        return (1 - distance).clamp_(min=0)
    near, far = distance.clamp(max=1), distance.clamp(1, 2)
    inner = (1.5 * near - 2.5).mul_(near).mul_(near).add_(1)
    return inner.add_(((-0.5 * far + 2.5).mul_(far).sub_(4)).mul_(far).add_(2))


def _weights(start: Tensor, extent: Tensor, length: int, size: int, interpolation: str, flip: Tensor) -> Tensor:
    """(B, size, length): the weights of the `length` source pixels for each pixel of the resized crop."""
    step = (extent / size)[:, None]  # (B, 1) source pixels per pixel of the view
    place = torch.arange(size, device=start.device, dtype=start.dtype)
    place = place + flip[:, None] * (size - 1 - 2 * place)  # (B, size), reversed where flipped
    centre = start[:, None] + (place + 0.5) * step
    source = torch.arange(length, device=start.device, dtype=start.dtype)
    distance = (source + 0.5 - centre[:, :, None]).abs_().div_(step.clamp(min=1)[:, :, None])
    inside = (source >= start[:, None]) & (source < (start + extent)[:, None])  # (B, length)
    weights = _filter(distance, interpolation).mul_(inside[:, None].to(start.dtype))
    return weights.div_(weights.sum(2, keepdim=True))


def resized_crops(pixels: Tensor, boxes: Boxes, size: int, interpolation: str, out: Tensor) -> None:
    """Crops of (B, C, H, W) uint8 images, flipped and resized into `out`, (B, C, size, size) floats in [0, 1]."""
    columns = [torch.from_numpy(v) for v in (boxes.left, boxes.width, boxes.top, boxes.height, boxes.flip)]
    numbers = upload(torch.stack([column.to(torch.float32) for column in columns], 1), pixels.device)  # (B, 5)
    at_once = max(1, _PIECE // pixels[0].numel()) if pixels.device.type == "cpu" else len(pixels)
    for some, number, crops in zip(*(t.split(at_once) for t in (pixels, numbers, out)), strict=True):
        count, channels, height, width = some.shape
        left, extent_across, top, extent_down, flip = number.unbind(1)
        across = _weights(left, extent_across, width, size, interpolation, flip)
        down = _weights(top, extent_down, height, size, interpolation, torch.zeros_like(flip))
        flat = some.to(torch.float32).reshape(count, channels * height, width)
        rows = torch.bmm(flat, across.mul_(1 / 255).mT).view(count, channels, height, size)
        if interpolation == "bicubic":  # overshoots; torchvision rounds to 0..255 after each pass
            rows.clamp_(0, 1)
        torch.matmul(down[:, None], rows, out=crops)
        if interpolation == "bicubic":
            crops.clamp_(0, 1)
