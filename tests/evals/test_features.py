"""Features: each image in its place, made once, kept under a key that changes with whatever changes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from hirl.data import Shapes, open_images
from hirl.data.loader import normalisation
from hirl.data.sources.image_set import ImageSet
from hirl.data.views.render import Normalisation
from hirl.evals.feature_cache import Shown, Store, extracted, identity
from hirl.runs.encoder_file import network_hash

SHOWN = Shown(16, Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))


class Mean(nn.Module):
    """The mean colour, counting the images it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.norm = nn.BatchNorm1d(3)

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return self.norm(images.mean((2, 3)))


def no_progress(_what: str, _done: int, _total: int) -> None: ...


@pytest.fixture
def shapes() -> Shapes:
    return Shapes(images=300, size=16, cache=False)


def test_every_image_is_in_its_place_and_nothing_moves(shapes: Shapes) -> None:
    network = Mean()
    told: list[tuple[int, int]] = []
    found = extracted(
        network, shapes, SHOWN, what="colours", progress=lambda _, done, total: told.append((done, total))
    )
    expected = shapes.pixels.float().div(255).mean((2, 3)) / (1 + network.norm.eps) ** 0.5
    torch.testing.assert_close(found, expected)
    assert network.training
    assert torch.equal(network.state_dict()["norm.running_mean"], torch.zeros(3))
    assert told[-1] == (300, 300)
    assert not found.is_inference()  # or no classifier could learn on it


def kept(folder: Path | None, network: Mean, images: ImageSet, shown: Shown = SHOWN, sha256: str = "a") -> Tensor:
    return Store(folder).kept(
        "features", sha256, shown, images, lambda: extracted(network, images, shown, what="", progress=no_progress)
    )


def test_the_second_time_they_are_read(shapes: Shapes, tmp_path: Path) -> None:
    network = Mean()
    first = kept(tmp_path / "features", network, shapes)
    again = kept(tmp_path / "features", network, Shapes(images=300, size=16, cache=False))
    assert network.seen == 300
    assert torch.equal(first, again)
    kept(None, network, shapes)
    assert network.seen == 600


def test_whatever_changes_them_makes_them_anew(shapes: Shapes, tmp_path: Path) -> None:
    network = Mean()
    kept(tmp_path, network, shapes)
    repainted = Shapes(images=300, size=16, cache=False)
    repainted.pixels[7, 0, 3, 3] ^= 1
    relabelled = Shapes(images=300, size=16, cache=False)
    relabelled.labels[7, 0] ^= 1
    others: list[tuple[ImageSet, Shown, str]] = [
        (repainted, SHOWN, "a"),
        (relabelled, SHOWN, "a"),
        (Shapes(images=300, size=16, split="val", cache=False), SHOWN, "a"),
        (shapes, Shown(8, SHOWN.normalisation), "a"),
        (shapes, Shown(16, normalisation(shapes)), "a"),
        (shapes, SHOWN, "b"),
    ]
    for place, (images, shown, sha256) in enumerate(others):
        kept(tmp_path, network, images, shown, sha256)
        assert network.seen == 300 * (place + 2)
    assert len(list(tmp_path.iterdir())) == len(others) + 1


def test_a_damaged_file_is_made_anew(shapes: Shapes, tmp_path: Path) -> None:
    network = Mean()
    first = kept(tmp_path, network, shapes)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-10])
    assert torch.equal(kept(tmp_path, network, shapes), first)
    assert network.seen == 600


def test_a_changed_file_of_a_folder_changes_its_identity(tmp_path: Path) -> None:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (200, 160), (90, 10, 10)).save(tmp_path / name)
    before = identity(open_images(tmp_path))
    assert identity(open_images(tmp_path)) == before
    Image.new("RGB", (200, 160), (10, 90, 10)).save(tmp_path / "cat" / "2.png")
    assert identity(open_images(tmp_path)) != before


def test_an_unreadable_image_is_told(tmp_path: Path) -> None:
    for number in range(4):
        Image.new("RGB", (200, 160), (60 * number, 10, 10)).save(tmp_path / f"{number}.png")
    (tmp_path / "2.png").write_bytes(b"broken")
    images = open_images(tmp_path)
    with pytest.warns(UserWarning, match="1 of the 4 images .* could not be read"):
        found = extracted(Mean(), images, Shown(16, SHOWN.normalisation, workers=0), what="", progress=no_progress)
    assert torch.equal(found[2], found[3])


def test_features_that_are_no_numbers_are_refused(shapes: Shapes) -> None:
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.mean((2, 3)).log() * 0

    shapes.pixels[5] = 0
    with pytest.raises(ValueError, match=r"NaN or infinite for 1 of the 300 images .* \[?.*5\]"):
        extracted(Broken(), shapes, SHOWN, what="", progress=no_progress)


def test_a_hash_is_of_weights_and_names_whatever_their_order() -> None:
    weights = {"a": torch.ones(2), "b": torch.tensor(3)}
    same = {"b": torch.tensor(3), "a": torch.ones(2)}
    assert network_hash(weights, "resnet") == network_hash(same, "resnet")
    others = [
        network_hash(weights, "vit"),
        network_hash({"a": torch.ones(2), "c": torch.tensor(3)}, "resnet"),
        network_hash({"a": torch.ones(2, 1), "b": torch.tensor(3)}, "resnet"),
        network_hash({"a": torch.ones(2).bfloat16(), "b": torch.tensor(3)}, "resnet"),
        network_hash({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3)}, "resnet"),
    ]
    assert len({network_hash(weights, "resnet"), *others}) == 6
