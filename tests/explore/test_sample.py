"""Samples through the tree: shares, picks, reproducibility."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from hirl import PrototypeTree
from hirl.cli.main import main
from hirl.explore import duplicates
from hirl.explore.collection import Collection, open_collection
from hirl.explore.sample import PICKS, equal_shares, leaf_shares, sample_images, without_copies


def test_shares_are_as_equal_as_sizes_allow() -> None:
    random = np.random.default_rng(0)
    assert equal_shares([10, 10, 10], 6, random) == [2, 2, 2]
    assert equal_shares([1, 10, 10], 9, random) == [1, 4, 4]
    assert equal_shares([0, 2, 3], 5, random) == [0, 2, 3]
    drawn = {tuple(equal_shares([9, 1, 5, 2, 5], 2, np.random.default_rng(seed))) for seed in range(50)}
    assert drawn == {(1, 0, 1, 0, 0), (1, 0, 0, 0, 1)}  # the largest, and one of the next two
    for seed in range(20):
        sizes = np.random.default_rng(seed).integers(0, 9, 7).tolist()
        total = int(np.random.default_rng(seed).integers(0, sum(sizes) + 1))
        shares = equal_shares(sizes, total, np.random.default_rng(seed))
        assert sum(shares) == total
        assert all(0 <= share <= size for share, size in zip(shares, sizes, strict=True))
        cut = [share for share, size in zip(shares, sizes, strict=True) if share < size]
        assert not cut or max(shares) - min(cut) <= 1  # nobody has more than one above those with room left


def test_every_level_shares_equally() -> None:
    tree = PrototypeTree(
        prototypes=(F.normalize(torch.randn(8, 4), dim=1), F.normalize(torch.randn(2, 4), dim=1)),
        parents=(torch.tensor([0, 0, 1, 1, 1, 1, 1, 1]),),
        leaves=torch.arange(8).repeat_interleave(50),
    )

    def shares(size: int, seed: int) -> dict[int, int]:
        return leaf_shares(tree, size, tree.leaves, seed=seed)

    assert shares(24, seed=0) == {0: 6, 1: 6, 2: 2, 3: 2, 4: 2, 5: 2, 6: 2, 7: 2}
    assert sum(shares(25, seed=1).values()) == 25
    assert shares(5, seed=1) == shares(5, seed=1)
    assert any(shares(5, seed=1) != shares(5, seed=seed) for seed in range(2, 6))
    few = torch.tensor([0, 1, 1, 1, 2, 2, 2, 3])
    assert leaf_shares(tree, 8, few, seed=0) == {0: 1, 1: 3, 2: 3, 3: 1}


@pytest.mark.parametrize("pick", ["typical", "spread"])
def test_samples_are_distinct_and_repeat_with_the_seed(collection: Collection, pick: str) -> None:
    for size in (1, 7, 30, 60):
        chosen = sample_images(collection, size, pick=pick, seed=3)  # type: ignore[arg-type]
        assert len(set(chosen)) == size
        assert chosen == sample_images(collection, size, pick=pick, seed=3)  # type: ignore[arg-type]
    assert sorted(sample_images(collection, 60)) == list(range(60))


def test_picks(collection: Collection) -> None:
    """Of one leaf: the images nearest to their mean, or the first of them and those farthest from what is chosen."""
    one = replace(
        collection,
        tree=PrototypeTree((collection.tree.prototypes[0][:1],), (), torch.zeros(len(collection), dtype=torch.int64)),
    )
    unit = F.normalize(one.z[0], dim=1)
    order = (unit @ unit.mean(0)).argsort(descending=True).tolist()
    assert sample_images(one, 5) == order[:5]
    spread = sample_images(one, 5, pick="spread")
    assert spread[0] == order[0]
    for place in range(1, 5):
        nearest = (unit @ unit[spread[:place]].T).amax(1)
        assert spread[place] == int(nearest.argmin())


PICTURES, COPIES = 16, 9  # of the first three pictures: the bytes, the pixels, and re-encoded


def textured(number: int) -> Image.Image:
    coarse = np.random.default_rng(number).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((96, 96), Image.Resampling.BICUBIC)


def collection_of_textures(folder: Path, copies: int) -> Collection:
    """Pictures in four leaves below two nodes, and copies of three pictures, which have nearly their features."""
    (folder / "photos").mkdir(parents=True)
    for number in range(PICTURES):
        textured(number).save(folder / "photos" / f"{number:02d}.png")
    for place in range(copies):
        number = place % 3
        file = folder / "photos" / f"{number:02d} copy {place}.{('png', 'bmp', 'jpg')[place // 3]}"
        if file.suffix == ".png":
            file.write_bytes((folder / "photos" / f"{number:02d}.png").read_bytes())
        else:
            textured(number).save(file, quality=60)
    names = [file.name for file in sorted((folder / "photos").iterdir())]
    random = np.random.default_rng(0)
    rows = random.standard_normal((PICTURES, 8)) + 2 * np.eye(4, 8)[np.arange(PICTURES) % 4]
    own = np.array([int(name[:2]) for name in names])
    noise = 0.02 * random.standard_normal((len(names), 8)) * np.array([["copy" in name] for name in names])
    np.save(folder / "features.npy", (rows[own] + noise).astype(np.float32))
    tree = PrototypeTree(
        prototypes=(F.normalize(torch.eye(4, 8), dim=1), F.normalize(torch.eye(2, 8), dim=1)),
        parents=(torch.tensor([0, 0, 1, 1]),),
        leaves=torch.from_numpy(own % 4),
    )
    return open_collection(folder / "features.npy", folder / "photos", tree=tree, quiet=True)


@pytest.mark.parametrize("pick", PICKS)
def test_copies_change_nothing_about_what_is_chosen(pick: str, tmp_path: Path) -> None:
    plain, copied = (collection_of_textures(tmp_path / str(copies), copies) for copies in (0, COPIES))
    for size in (1, 2, 3, 6, PICTURES):
        pictures = [
            [int(Path(collection.images.path(image)).name[:2]) for image in sample_images(collection, size, pick=pick)]  # type: ignore[arg-type]
            for collection in (plain, copied)
        ]
        assert len(set(pictures[1])) == size
        assert pictures[0] == pictures[1]
    with pytest.raises(ValueError, match=r"size is 17, but must be at most 16: of the 25 .*, the other 9 are copies"):
        sample_images(copied, PICTURES + 1)


@pytest.mark.parametrize("confused", [False, True])
def test_the_command_says_how_many_copies_there_are(
    confused: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features that tell too few images from each other leave it to details."""
    collection_of_textures(tmp_path, COPIES)
    if confused:
        monkeypatch.setattr(duplicates, "MOST_PAIRS", -1)
    line = ["sample", str(tmp_path / "features.npy"), "--data", str(tmp_path / "photos"), "--levels", "4", "2"]
    assert main([*line, "--out", str(tmp_path / "list.txt")]) == 0
    shown = capsys.readouterr().out
    assert "9 of 25 images are copies of others, or links to them, and are not chosen" in shown
    assert ("by files and details alone" in shown) == confused
    assert "Wrote 16 of 25 images" in shown


def test_copies_are_those_that_duplicates_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    collection_of_textures(tmp_path, COPIES)
    embedded = open_collection(tmp_path / "photos", levels=(4, 2), quiet=True)
    kept = {Path(embedded.images.path(image)).name[:2] for image in without_copies(embedded)[0].tolist()}
    assert len(without_copies(embedded)[0]) == len(kept) == PICTURES


def test_mistakes(collection: Collection) -> None:
    with pytest.raises(ValueError, match=r"size is 61, but must be at least 1 and at most the 60 readable images"):
        sample_images(collection, 61)
    with pytest.raises(ValueError, match=r"pick is 'nice', but must be one of typical, spread"):
        sample_images(collection, 5, pick="nice")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"seed is -1"):
        sample_images(collection, 5, seed=-1)


def test_unsure_images_are_those_nearest_to_another_leaf(collection: Collection) -> None:
    tree = collection.tree
    margins = tree.margins(collection.z[0], tree.leaves)[:, 0]
    chosen = sample_images(collection, 30, pick="unsure")
    for leaf, share in leaf_shares(tree, 30, tree.leaves, seed=0).items():
        images = tree.images(0, leaf)
        assert [index for index in chosen if tree.leaves[index] == leaf] == images[margins[images].argsort()][
            :share
        ].tolist()
