"""Features: in the images' order, computed once, cached under a key that covers everything they depend on."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from hirl.data import Shapes, open_images, open_in_memory
from hirl.data.loader import EvaluationLoader
from hirl.data.sources import identity
from hirl.data.sources.decode import DECODING
from hirl.data.sources.identity import image_identity
from hirl.data.sources.image_set import ImageSet, Subset
from hirl.data.views.normalisation import Normalisation, choose_normalisation
from hirl.features import extractor, feature_cache
from hirl.features.extractor import Extractor, extract_features
from hirl.features.feature_cache import FeatureCache
from hirl.features.forward_pass import forward_pass
from hirl.features.open_encoder import Encoder, open_encoder
from hirl.features.preprocessing import Preprocessing
from hirl.terminal.progress import no_progress

PLAIN = Preprocessing(16, Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))


class Mean(nn.Module):
    """The mean colour; counts the images."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.norm = nn.BatchNorm1d(3)

    def forward(self, images: Tensor) -> Tensor:
        self.count += len(images)
        return self.norm(images.mean((2, 3)))


@pytest.fixture
def shapes() -> Shapes:
    return Shapes(images=300, size=16, cache=False)


def test_features_are_in_order_and_the_network_is_unchanged(shapes: Shapes) -> None:
    network = Mean()
    calls: list[tuple[int, int]] = []
    found = extract_features(
        network, shapes, PLAIN, task="colours", progress=lambda _, done, total: calls.append((done, total))
    ).rows
    expected = shapes.pixels.float().div(255).mean((2, 3)) / (1 + network.norm.eps) ** 0.5
    torch.testing.assert_close(found, expected)
    assert network.training
    assert torch.equal(network.state_dict()["norm.running_mean"], torch.zeros(3))
    assert calls[-1] == (300, 300)
    assert not found.is_inference()  # or no classifier could learn on it


def features(
    folder: Path | None, network: Mean, images: ImageSet, preprocessing: Preprocessing = PLAIN, sha256: str = "a"
) -> Tensor:
    encoder = Encoder(name="mean", network=network, sha256=sha256, description={})
    return Extractor(encoder, preprocessing, FeatureCache(folder), progress=no_progress).features(images)


def test_only_images_that_came_or_changed_are_computed(tmp_path: Path) -> None:
    """And those that were known stay the same, wherever they are in the set now."""
    pixels = torch.randint(256, (7, 20, 20, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).numpy()
    (tmp_path / "images").mkdir()
    network, encoder = Mean(), partial(Encoder, sha256="a", description={})

    def find() -> tuple[Tensor, list[tuple[int, int]]]:
        calls: list[tuple[int, int]] = []
        cache = FeatureCache(tmp_path / "cache", by_image=True)
        extractor = Extractor(
            encoder(name="mean", network=network), PLAIN, cache, progress=lambda _, *done: calls.append(done)
        )
        return extractor.features(open_images(tmp_path / "images")), calls

    def draw(name: str, place: int) -> None:
        Image.fromarray(pixels[place]).save(tmp_path / "images" / name)

    for place, name in enumerate("bcdef"):
        draw(f"{name}.png", place)
    first, calls = find()
    assert calls[-1] == (5, 5)
    draw("a.png", 5)
    (tmp_path / "images" / "c.png").unlink()
    (tmp_path / "images" / "f.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"1 of the 5 images of .* could not be read"):
        second, calls = find()
    assert calls[-1] == (2, 2)
    assert torch.equal(second[1:4], first[[0, 2, 3]])
    assert second[4].isnan().all()
    added = Subset(open_images(tmp_path / "images"), torch.tensor([0]))
    torch.testing.assert_close(second[:1], features(None, network, added))
    (tmp_path / "images" / "a.png").unlink()
    with pytest.warns(UserWarning, match=r"1 of the 4 images of .* could not be read"):
        third, calls = find()
    assert calls == []  # nothing is new
    assert torch.equal(third[:3], second[1:4])


def test_the_second_time_they_are_read_from_disk(shapes: Shapes, tmp_path: Path) -> None:
    network = Mean()
    first = features(tmp_path / "features", network, shapes)
    again = features(tmp_path / "features", network, Shapes(images=300, size=16, cache=False))
    assert network.count == 300
    assert torch.equal(first, again)
    features(None, network, shapes)
    assert network.count == 600


def test_features_that_cannot_be_kept_are_computed(
    shapes: Shapes, tmp_path: Path, read_only: Callable[[Path], None]
) -> None:
    read_only(tmp_path)
    with pytest.warns(UserWarning, match=r"^nothing is kept for the next time: .* cannot be written to$"):
        found = features(tmp_path / "features", Mean(), shapes)
    assert torch.equal(found, features(None, Mean(), shapes))
    assert not any((tmp_path / "features").iterdir())


def test_a_change_of_anything_they_depend_on_computes_them_again(shapes: Shapes, tmp_path: Path) -> None:
    network = Mean()
    features(tmp_path, network, shapes)
    repainted = Shapes(images=300, size=16, cache=False)
    repainted.pixels[7, 0, 3, 3] ^= 1
    relabelled = Shapes(images=300, size=16, cache=False)
    relabelled.labels[7, 0] ^= 1
    others: list[tuple[ImageSet, Preprocessing, str]] = [
        (repainted, PLAIN, "a"),
        (relabelled, PLAIN, "a"),
        (Shapes(images=300, size=16, split="val", cache=False), PLAIN, "a"),
        (shapes, Preprocessing(8, PLAIN.normalisation), "a"),
        (shapes, Preprocessing(16, choose_normalisation(shapes)), "a"),
        (shapes, PLAIN, "b"),
    ]
    for place, (images, preprocessing, sha256) in enumerate(others):
        features(tmp_path, network, images, preprocessing, sha256)
        assert network.count == 300 * (place + 2)
    assert len(list(tmp_path.iterdir())) == len(others) + 1


def test_many_features_are_in_half_precision_in_a_file(
    shapes: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with and without a cache, from memory or from disk; a damaged file is replaced."""
    network = Mean()
    exact = features(None, network, shapes)
    monkeypatch.setattr(feature_cache, "LARGE", 900)
    first = features(tmp_path, network, shapes).clone()  # it is mapped from the file
    assert first.dtype == torch.float16
    torch.testing.assert_close(first.float(), exact, atol=1e-3, rtol=0)
    assert torch.equal(features(None, network, shapes), first)
    assert network.count == 900
    assert torch.equal(features(tmp_path, network, shapes), first)
    assert network.count == 900
    small, large = sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_size)
    assert (small.suffix, large.suffix) == (".safetensors", ".npy")
    assert 0 < large.stat().st_size - (128 + 900 * 2) < 100  # header, features and checksum
    content = bytearray(large.read_bytes())
    content[1000] ^= 1
    large.write_bytes(content)
    with pytest.warns(UserWarning, match=r"npy' is damaged: .*; the features are computed again"):
        assert torch.equal(features(tmp_path, network, shapes), first)
    large.unlink()
    with pytest.warns(UserWarning, match="is damaged; the features are computed again"):
        assert torch.equal(features(tmp_path, network, shapes), first)
    assert network.count == 1500
    monkeypatch.setattr(feature_cache, "LARGE", 901)
    assert features(None, network, shapes).dtype == torch.float32


def test_features_beyond_half_precision_are_refused(shapes: Shapes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loud(Mean):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) * 1e7

    monkeypatch.setattr(feature_cache, "LARGE", 900)
    with pytest.raises(ValueError, match="NaN or infinite in half precision for"):
        features(None, Loud(), shapes)


class Heads(nn.Flatten):
    sha256 = "b"


def test_images_are_resized_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the features and in their key; representations stay as the trees were built, bilinear."""
    monkeypatch.setattr(Encoder, "load_trained", lambda *_, **__: Heads())
    for name in ("1.png", "2.png"):
        noise = torch.randint(256, (60, 60, 3), generator=torch.Generator().manual_seed(int(name[0])))
        Image.fromarray(noise.to(torch.uint8).numpy()).save(tmp_path / name)
    images = open_images(tmp_path)
    found = {}
    for interpolation in ("bilinear", "bicubic"):
        preprocessing = replace(PLAIN, interpolation=interpolation, workers=0)
        encoder = Encoder(name="pixels", network=nn.Flatten(), sha256="a", description={})
        extractor = Extractor(encoder, preprocessing, FeatureCache(tmp_path / "cache"), progress=no_progress)
        found[interpolation] = extractor.features(images)
        expected = EvaluationLoader(
            images, size=16, interpolation=interpolation, workers=0, mean=(0.0,) * 3, std=(1.0,) * 3
        )
        assert torch.equal(found[interpolation], next(iter(expected)).views[0].flatten(1))
        assert torch.equal(extractor.representations(images), found["bilinear"])
    assert not torch.equal(found["bilinear"], found["bicubic"])


def test_a_damaged_file_is_replaced(shapes: Shapes, tmp_path: Path) -> None:
    network = Mean()
    first = features(tmp_path, network, shapes)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.warns(UserWarning, match="is damaged: its content does not match its checksum; the features are"):
        assert torch.equal(features(tmp_path, network, shapes), first)
    assert network.count == 600


def test_a_changed_file_of_a_folder_changes_its_image_identity(tmp_path: Path) -> None:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (200, 160), (90, 10, 10)).save(tmp_path / name)
    before = image_identity(open_images(tmp_path))
    assert image_identity(open_images(tmp_path)) == before
    Image.new("RGB", (200, 160), (10, 90, 10)).save(tmp_path / "cat" / "2.png")
    assert image_identity(open_images(tmp_path)) != before


def test_features_of_files_that_were_decoded_otherwise_are_not_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (200, 160)).save(tmp_path / "1.png")
    before = image_identity(open_images(tmp_path))
    monkeypatch.setattr(identity, "DECODING", DECODING + 1)
    assert image_identity(open_images(tmp_path)) != before


@pytest.mark.parametrize("size", [(200, 160), (20, 16)])  # files, and small images read into memory
def test_an_unreadable_image_has_no_features_and_is_reported(size: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(4):
        Image.new("RGB", size, (60 * number, 10, 10)).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "2.png").write_bytes(b"broken")
    preprocessing, encoder = Preprocessing(16, PLAIN.normalisation, workers=0), Encoder("mean", Mean(), "a", {})
    for _ in range(2):  # the second time from the cache
        extractor = Extractor(encoder, preprocessing, FeatureCache(tmp_path / "cache"), progress=no_progress)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            images = open_in_memory(tmp_path / "photos")
            found, readable = extractor.features(images), extractor.readable(images)
        (message,) = [str(warning.message) for warning in caught]
        assert re.search(r"1 of the .*images .* could not be read.*2\.png", message)
        assert readable.tolist() == [True, True, False, True]
        assert found[2].isnan().all()
        assert found[readable].isfinite().all()
        torch.testing.assert_close(found[3] - found[1], torch.tensor([120 / 255, 0.0, 0.0]), rtol=0, atol=1e-4)


def test_features_that_are_not_finite_are_refused(shapes: Shapes) -> None:
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.mean((2, 3)).log() * 0

    shapes.pixels[5] = 0
    with pytest.raises(ValueError, match=r"NaN or infinite for 1 of the 300 images .* \[?.*5\]"):
        extract_features(Broken(), shapes, PLAIN, task="", progress=no_progress)


def test_features_pass_through_folded_batch_norms(shapes: Shapes, monkeypatch: pytest.MonkeyPatch) -> None:
    """And freed memory is kept, as a command does."""
    calls: list[str] = []
    monkeypatch.setattr(extractor, "keep_freed_memory", lambda: calls.append("kept"))
    passed = forward_pass

    def noted(network: nn.Module, *given: Any) -> Any:
        calls.append(f"{sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())} norms")
        return passed(network, *given)

    monkeypatch.setattr(extractor, "forward_pass", noted)
    encoder = open_encoder("random:resnet10t", backbone_args={"channels": [8, 8, 16, 16]})
    found = Extractor(encoder, PLAIN, progress=no_progress).features(shapes)
    assert calls == ["kept", "0 norms"]
    as_it_is = extract_features(encoder.network, shapes, PLAIN, task="", progress=no_progress).rows
    assert calls[-1] != "0 norms"
    torch.testing.assert_close(found, as_it_is, atol=1e-5, rtol=1e-4)
