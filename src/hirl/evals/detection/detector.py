"""A detector: an encoder's layers as its body, proposals, and heads. CNNs become C4, transformers a cascade."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torchvision.models.detection.image_list import ImageList

from hirl.evals.detection.c4 import C4Heads, c4_parts, is_resnet
from hirl.evals.detection.cascade import cascade_parts
from hirl.evals.detection.pyramid import PyramidBody, as_timm, is_plain_vit, is_torchvision_vit
from hirl.evals.detection.regions import Detections, HeadSizes, SeededSampler, Targets
from hirl.evals.training.regularisation import add_drop_paths
from hirl.methods.parts.drop_path import DropPath, set_factors
from hirl.seeds import mix_seed

C4_MULTIPLE = 32  # of the sides of a padded batch
PATHS = 2  # stream of random numbers


class Detector(nn.Module):
    """Images of any sizes → losses in training, detections otherwise."""

    def __init__(self, body: nn.Module, proposals: nn.Module, heads: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.proposals = proposals
        self.heads = heads
        self.drop_paths: Sequence[DropPath] = ()

    @property
    def kind(self) -> str:
        """Its name in publications."""
        segments = any(name.endswith("mask_fcn_logits.weight") for name, _ in self.heads.named_parameters())
        network = "Mask R-CNN" if segments else "Faster R-CNN" if isinstance(self.heads, C4Heads) else "R-CNN"
        return f"{network} C4" if isinstance(self.heads, C4Heads) else f"Cascade {network}"

    @property
    def multiple(self) -> int:
        """The sides of a padded batch are multiples of this."""
        return 2 * self.body.patch if isinstance(self.body, PyramidBody) else C4_MULTIPLE

    @property
    def samplers(self) -> Iterator[SeededSampler]:
        """All samplers, which draw at random."""
        yield self.proposals.fg_bg_sampler  # type: ignore[misc]
        yield from self.heads.samplers  # type: ignore[misc]

    def set_drop_path(self, rate: float) -> None:
        """Let a transformer's blocks drop their residual branches in training, the last of them at this rate."""
        if isinstance(self.body, PyramidBody):
            self.drop_paths = add_drop_paths(self.body.vit, rate)

    def forward(
        self, images: Tensor, sizes: Sequence[tuple[int, int]], given: Targets | None = None, seeds: Sequence[int] = ()
    ) -> tuple[list[Detections], dict[str, Tensor]]:
        """Detections, and losses by name where targets are given.

        images (B, C, H, W), normalised and padded with 0; sizes: height and width of each; seeds: one per image, of
        all that is drawn for it.
        """
        for sampler in self.samplers:
            sampler.seeds = seeds
        if self.training and self.drop_paths:
            self._draw_paths(seeds, images.device)
        targets = None if given is None else given.each
        maps = self.body(images, sizes)
        named = {str(level): one for level, one in enumerate(maps)}
        boxes, losses = self.proposals(ImageList(images, list(sizes)), named, targets)
        found, more = self.heads(maps, self.body.strides, boxes, sizes, targets)
        return found, {name.removeprefix("loss_"): loss for name, loss in losses.items()} | more

    def _draw_paths(self, seeds: Sequence[int], device: torch.device) -> None:
        """From the seed of each image, whichever process and part of a batch it is in."""
        generators = [torch.Generator().manual_seed(mix_seed(seed, PATHS)) for seed in seeds]
        chances = [torch.rand(len(self.drop_paths), generator=generator) for generator in generators]
        set_factors(self.drop_paths, torch.stack(chances, dim=1), device)


def make_detector(
    encoder: nn.Module,
    classes: int,
    *,
    segment: bool,
    sizes: HeadSizes = HeadSizes(),  # noqa: B008 (frozen)
) -> Detector:
    """A detector on the layers of `encoder`, which it takes over: give a copy. New layers start at random."""
    if is_torchvision_vit(encoder):
        encoder = as_timm(encoder)
    if is_plain_vit(encoder):
        return Detector(*cascade_parts(encoder, classes, sizes, segment=segment))
    if is_resnet(encoder):
        return Detector(*c4_parts(encoder, classes, sizes, segment=segment))
    raise ValueError(
        f"a detector cannot be built on {type(encoder).__name__}: it takes ResNets (C4) and plain vision transformers "
        "(cascade), such as resnet50 and vit_base_patch16_224"
    )


def padded(images: Sequence[Tensor], multiple: int) -> Tensor:
    """(B, C, H, W): images (C, h, w) in the upper left corner of zeros, whose sides are multiples of `multiple`."""
    height, width = (max(image.shape[side] for image in images) for side in (1, 2))
    height, width = (-(-side // multiple) * multiple for side in (height, width))
    batch = images[0].new_zeros(len(images), images[0].shape[0], height, width)
    for place, image in enumerate(images):
        batch[place, :, : image.shape[1], : image.shape[2]] = image
    return batch


def freeze_unused(detector: nn.Module) -> None:
    """Freeze parameters that get no gradient, such as a transformer's last norm: processes would wait for it."""
    body = detector.body if isinstance(detector, Detector) else None
    detector.requires_grad_(True)
    if isinstance(body, PyramidBody):
        for part in (body.vit.norm, body.vit.fc_norm, body.vit.head):
            part.requires_grad_(False)


def float_images(images: Sequence[Tensor], mean: Sequence[float], std: Sequence[float]) -> list[Tensor]:
    """uint8 images, normalised."""
    shift, scale = (torch.tensor(values, device=images[0].device).view(-1, 1, 1) for values in (mean, std))
    return [(image.float() / 255 - shift) / scale for image in images]
