"""Every colour operation against torchvision's functional of the same name, image by image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms.v2 import functional as tv

from hirl.data.views import photometry
from hirl.data.views.parameters import Colours

FACTORS = [0.0, 0.2, 0.7, 1.0, 1.3, 1.8]
SHIFTS = [-0.5, -0.21, 0.0, 0.1, 0.33, 0.5]


def pictures(size: int = 17, channels: int = 3, count: int = 6) -> Tensor:
    images = torch.rand(count, channels, size, size + 3, generator=torch.Generator().manual_seed(1))
    images[0, :, :5] = 0.25  # grey pixels have no hue
    images[1, 0] = images[1, -1]  # ties between channels
    images[2] = (images[2] * 3).round() / 3  # saturated and black pixels
    return images


def column(values: list[float]) -> Tensor:
    return torch.tensor(values)[:, None, None, None]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("ours", "theirs", "values"),
    [
        (photometry.brightness_, tv.adjust_brightness, FACTORS),
        (photometry.contrast_, tv.adjust_contrast, FACTORS),
        (photometry.saturation_, tv.adjust_saturation, FACTORS),
        (photometry.hue_, tv.adjust_hue, SHIFTS),
    ],
)
def test_jitter_matches_torchvision(
    ours: Callable[[Tensor, Tensor], Tensor],
    theirs: Callable[[Tensor, float], Tensor],
    values: list[float],
    channels: int,
) -> None:
    images = pictures(channels=channels)
    expected = torch.stack([theirs(image, value) for image, value in zip(images, values, strict=True)])
    torch.testing.assert_close(ours(images.clone(), column(values)), expected, atol=2e-6, rtol=0)


def test_grey_matches_torchvision() -> None:
    images = pictures()
    torch.testing.assert_close(
        photometry.grey(images), tv.rgb_to_grayscale(images, num_output_channels=3), atol=1e-6, rtol=0
    )


def test_solarise_matches_torchvision() -> None:
    images = pictures()
    images[0, 0, 0, 0] = 0.5
    torch.testing.assert_close(photometry.solarise(images), tv.solarize(images, 0.5), atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", [17, 110])  # both ways of blurring
def test_blur_matches_torchvision(size: int) -> None:
    images = pictures(size)
    sigmas = [0.1, 0.4, 0.9, 1.3, 1.8, 2.0]
    expected = torch.stack(
        [tv.gaussian_blur(image, [13, 13], [sigma, sigma]) for image, sigma in zip(images, sigmas, strict=True)]
    )
    torch.testing.assert_close(photometry.blur(images, torch.tensor(sigmas), 6), expected, atol=2e-6, rtol=0)


def test_blur_radius_covers_three_sigma_and_fits_the_image() -> None:
    assert photometry.blur_radius(2.0, 32) == 6
    assert photometry.blur_radius(0.1, 32) == 1
    assert photometry.blur_radius(2.0, 4) == 3


def test_normalise_matches_torchvision() -> None:
    images = pictures()
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    ours = photometry.normalise_(images.clone(), torch.tensor(mean), torch.tensor(std))
    torch.testing.assert_close(ours, tv.normalize(images, mean, std), atol=5e-6, rtol=0)


def random_colours(count: int) -> Colours:
    rng = np.random.default_rng(0)
    return Colours(
        order=rng.integers(-1, 24, count),
        factors=np.concatenate([rng.uniform(0.4, 1.6, (count, 3)), rng.uniform(-0.2, 0.2, (count, 1))], 1),
        grey=rng.random(count) < 0.3,
        sigma=np.where(rng.random(count) < 0.5, rng.uniform(0.1, 2.0, count), 0.0),
        solarise=rng.random(count) < 0.3,
    )


def one_by_one(image: Tensor, drawn: Colours, row: int, mean: Tensor, std: Tensor) -> Tensor:
    """The slow, obvious reference: torchvision on one image, operations in this image's order."""
    from itertools import permutations

    if drawn.order[row] >= 0:
        for which in list(permutations(range(4)))[drawn.order[row]]:
            adjust = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)[which]
            image = adjust(image, float(drawn.factors[row, which]))
    if drawn.grey[row]:
        image = tv.rgb_to_grayscale(image, num_output_channels=3)
    if drawn.sigma[row]:
        sigma = float(drawn.sigma[row])
        taps = 2 * photometry.blur_radius(sigma, image.shape[-1]) + 1
        image = tv.gaussian_blur(image, [taps, taps], [sigma, sigma])
    if drawn.solarise[row]:
        image = tv.solarize(image, 0.5)
    return tv.normalize(image, mean.tolist(), std.tolist())


@pytest.mark.parametrize(("size", "count"), [(24, 80), (224, 6)])
def test_all_stages_together_match_torchvision(size: int, count: int) -> None:
    images = torch.randint(
        0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(2), dtype=torch.uint8
    )
    drawn = random_colours(count)
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])
    ours = photometry.coloured(images, drawn, mean, std)
    for row in range(count):
        expected = one_by_one(images[row] / 255, drawn, row, mean, std)
        differs = (ours[row] - expected).abs() > 1e-4
        assert not differs.any()


def test_rows_do_not_depend_on_their_company_or_on_threads() -> None:
    images = torch.randint(0, 256, (40, 3, 32, 32), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    drawn = random_colours(40)
    mean, std = torch.zeros(3), torch.ones(3)
    together = photometry.coloured(images, drawn, mean, std)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        for rows in (slice(0, 1), slice(5, 12), slice(0, 40)):
            some = Colours(
                drawn.order[rows], drawn.factors[rows], drawn.grey[rows], drawn.sigma[rows], drawn.solarise[rows]
            )
            assert torch.equal(photometry.coloured(images[rows], some, mean, std), together[rows])
    finally:
        torch.set_num_threads(threads)


def test_a_gpu_gets_the_same_jitters_in_fewer_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(0, 256, (300, 3, 16, 16), generator=torch.Generator().manual_seed(4), dtype=torch.uint8)
    drawn = random_colours(300)
    mean, std = torch.zeros(3), torch.ones(3)
    expected = photometry.coloured(images, drawn, mean, std)
    groups = photometry._jitter_groups
    assert len(list(groups(drawn, by_order=True))) == 24  # of four jitters each
    assert len(list(groups(drawn, by_order=False))) == 16  # of one
    monkeypatch.setattr(photometry, "_jitter_groups", lambda drawn, by_order: groups(drawn, by_order=not by_order))
    assert torch.equal(photometry.coloured(images, drawn, mean, std), expected)


class Launches(TorchDispatchMode):
    """Counts copies to the meta device, and operations there other than views."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads = self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_meta and not func.is_view:
            self.operations += 1
            self.uploads += any(isinstance(arg, Tensor) and not arg.is_meta for arg in args)
        return result


@pytest.mark.parametrize("size", [64, 224])  # both ways of blurring
def test_a_batch_on_a_gpu_needs_two_copies_and_few_operations(size: int) -> None:
    """Whatever the number of images: on the meta device, which stands in for a GPU."""
    images = torch.empty(512, 3, size, size, dtype=torch.uint8, device="meta")
    mean, std = torch.zeros(3, device="meta"), torch.ones(3, device="meta")
    with Launches() as launches:
        photometry.coloured(images, random_colours(512), mean, std)
    assert launches.uploads == 2  # parameters and rows
    assert launches.operations < 550


def test_nothing_to_do_but_normalise() -> None:
    images = torch.full((2, 3, 8, 8), 51, dtype=torch.uint8)
    none = Colours(np.full(2, -1), np.ones((2, 4)), np.zeros(2, bool), np.zeros(2), np.zeros(2, bool))
    result = photometry.coloured(images, none, torch.full((3,), 0.1), torch.ones(3))
    torch.testing.assert_close(result, torch.full((2, 3, 8, 8), 0.1))
