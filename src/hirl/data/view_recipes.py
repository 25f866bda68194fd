"""The views of the six methods, as their publications describe them at 224 pixels, sized to the images at hand.

Below 64 pixels no view is blurred: a Gaussian of up to 2 pixels would erase a 32 px picture, and SimSiam's published
CIFAR recipe leaves it out for that reason. Everything else stays as published.
"""

from __future__ import annotations

from collections.abc import Callable

from hirl.data.views import BlockMask, Blur, Jitter, View, multi_crop, pair

_SMALLEST_BLURRED = 64


def _blur(size: int, probability: float) -> Blur | None:
    return Blur(probability=probability) if size >= _SMALLEST_BLURRED else None


def local_size(size: int) -> int:
    """The side of a local crop: 96 at 224, else the nearest multiple of 8 to the same proportion, at least 8."""
    return max(8, round(size * 96 / 224 / 8) * 8)


def moco_v2(size: int = 224) -> tuple[View, ...]:
    """MoCo v2 (Chen et al. 2020): two draws of one strong augmentation."""
    return pair(View(size=size, scale=(0.2, 1.0), jitter=Jitter(), grey=0.2, blur=_blur(size, 0.5)))


def simsiam(size: int = 224) -> tuple[View, ...]:
    """SimSiam (Chen and He 2021): MoCo v2's views."""
    return moco_v2(size)


def swav(size: int = 224, *, local: int | None = None, count: int = 6) -> tuple[View, ...]:
    """SwAV (Caron et al. 2020): 2 + 6 crops, jitter of doubled strength."""
    jitter = Jitter(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
    blur = _blur(size, 0.5)
    large = View(size=size, scale=(0.14, 1.0), jitter=jitter, grey=0.2, blur=blur)
    small = View(size=local or local_size(size), scale=(0.05, 0.14), jitter=jitter, grey=0.2, blur=blur)
    return multi_crop((large, large), small, count)


_SOFT = Jitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)


def moco_v3(size: int = 224) -> tuple[View, ...]:
    """MoCo v3 (Chen et al. 2021): an asymmetric pair, the second solarised now and then instead of blurred."""
    return pair(
        View(size=size, scale=(0.08, 1.0), jitter=_SOFT, grey=0.2, blur=_blur(size, 1.0)),
        View(size=size, scale=(0.08, 1.0), jitter=_SOFT, grey=0.2, blur=_blur(size, 0.1), solarise=0.2),
    )


def _dino_like(size: int, local: int | None, count: int, split: float, mask: BlockMask | None) -> tuple[View, ...]:
    def view(side: int, scale: tuple[float, float], blurred: float, solarise: float, mask: BlockMask | None) -> View:
        return View(
            size=side,
            scale=scale,
            interpolation="bicubic",
            jitter=_SOFT,
            grey=0.2,
            blur=_blur(size, blurred),
            solarise=solarise,
            mask=mask,
        )

    large = (view(size, (split, 1.0), 1.0, 0.0, mask), view(size, (split, 1.0), 0.1, 0.2, mask))
    return multi_crop(large, view(local or local_size(size), (0.05, split), 0.5, 0.0, None), count)


def dino(size: int = 224, *, local: int | None = None, count: int = 10) -> tuple[View, ...]:
    """DINO (Caron et al. 2021): an asymmetric global pair and 10 local crops, all resized bicubically."""
    return _dino_like(size, local, count, 0.25, None)


def ibot(size: int = 224, *, local: int | None = None, count: int = 10, patch: int = 16) -> tuple[View, ...]:
    """iBOT (Zhou et al. 2022): DINO's views split at a share of .32, with block-wise masks on the global ones."""
    return _dino_like(size, local, count, 0.32, BlockMask(patch=patch))


RECIPES: dict[str, Callable[[int], tuple[View, ...]]] = {
    "moco_v2": moco_v2,
    "simsiam": simsiam,
    "swav": swav,
    "moco_v3": moco_v3,
    "dino": dino,
    "ibot": ibot,
}
