"""The built-in picture set: same pixels everywhere, a consistent tree, a careful cache, no kind known by colour."""

from __future__ import annotations

import ast
import hashlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hirl.data import shapes
from hirl.data.shapes import Shapes, painting, picture_set
from hirl.data.shapes.canvas import Canvas
from hirl.data.shapes.class_tree import FAMILIES, KINDS, KINGDOMS, TREE
from hirl.data.shapes.forms import Floats, sine, turns_of
from hirl.data.sources.image_set import ImageSet


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hirl"


@pytest.fixture(scope="module")
def pictures() -> Shapes:
    return Shapes(images=2_400, cache=False)


def digest(pixels: Tensor) -> str:
    return hashlib.sha256(pixels.numpy().tobytes()).hexdigest()[:16]


# The set --------------------------------------------------------------------------------------------------------------


def test_is_an_image_set() -> None:
    drawn = Shapes(images=50, size=20)
    assert isinstance(drawn, ImageSet)
    assert len(drawn) == 50
    assert drawn.channels == 3
    assert drawn.pixels.shape == (50, 3, 20, 20)
    assert drawn.pixels.dtype == torch.uint8
    assert torch.equal(drawn.read(7, shorter=8), drawn.pixels[7])
    with pytest.raises(IndexError, match="0 to 49, not 50"):
        drawn.read(50)


def test_labels_follow_the_tree() -> None:
    drawn = Shapes(images=100, size=16)
    assert drawn.labels.shape == (100, 3)
    assert drawn.labels.dtype == torch.int64
    assert [len(set(names)) for names in drawn.label_names] == [48, 12, 4]
    for kind, family, kingdom in drawn.labels.tolist():
        marks, name = KINDS[kind].split(" ")
        assert name == FAMILIES[family]
        assert marks in TREE[KINGDOMS[kingdom]].families[name].marks


def test_every_run_of_48_holds_every_kind() -> None:
    runs = Shapes(images=480, size=16).labels[:, 0].reshape(10, 48)
    assert torch.equal(runs.sort(dim=1).values, torch.arange(48).expand(10, 48))
    assert len({tuple(run) for run in runs.tolist()}) == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 15}, "size is 15.*from 16 to 512"),
        ({"size": 513}, "size is 513.*from 16 to 512"),
        ({"images": 0}, "images is 0.*at least 1"),
        ({"seed": -1}, "seed is -1.*from 0"),
        ({"split": "test"}, "split is 'test'.*'train', 'val'"),
    ],
)
def test_bad_arguments(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shapes(**arguments)  # type: ignore[arg-type]


# The same pixels everywhere -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        (lambda: Shapes(images=96, size=32, cache=False), "273259245eed8d7a"),
        (lambda: Shapes(images=48, size=64, seed=7, split="val", cache=False), "0e23960438709d1a"),
        (lambda: Shapes(images=48, size=17, seed=2, cache=False), "647e3223d2278e2a"),
    ],
)
def test_pixels_are_these_and_no_others(drawn: Callable[[], Shapes], expected: str) -> None:
    """A change here is a change of the drawing: raise DRAWING_VERSION with it."""
    assert digest(drawn().pixels) == expected


def test_a_picture_does_not_depend_on_how_many_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Shapes(images=150, size=24, cache=False)
    few = Shapes(images=70, size=24, cache=False)
    monkeypatch.setattr(painting, "_PIXELS_AT_ONCE", 1)  # other batches, too
    batched = Shapes(images=150, size=24, cache=False)
    assert torch.equal(many.pixels[:70], few.pixels)
    assert torch.equal(many.labels[:70], few.labels)
    assert torch.equal(many.pixels, batched.pixels)


def test_seed_and_split_change_every_picture() -> None:
    sets = [Shapes(images=48, size=16, cache=False, seed=s, split=p) for s in (0, 1) for p in ("train", "val")]
    everything = torch.cat([s.pixels for s in sets]).flatten(1)
    assert len(everything.unique(dim=0)) == 4 * 48


def test_sizes_show_the_same_scene() -> None:
    small, large = (Shapes(images=96, size=size, cache=False).pixels.float() for size in (32, 96))
    shrunk = functional.avg_pool2d(large, 3)
    same = (small - shrunk).abs().mean(dim=(1, 2, 3))
    other = (small - shrunk.roll(48, dims=0)).abs().mean(dim=(1, 2, 3))
    assert (same < 12).all()  # grain and edges; of 255
    assert same.max() < other.median()


def test_only_float32_reaches_the_canvas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double that slips in would round differently in another numpy."""
    dtypes = set()
    cover, paint = Canvas.cover, Canvas.paint

    def watched_cover(self: Canvas, distance: Floats) -> Floats:
        dtypes.add(distance.dtype)
        return cover(self, distance)

    def watched_paint(self: Canvas, distance: Floats, tint: list[Floats]) -> None:
        dtypes.update(channel.dtype for channel in tint)
        paint(self, distance, tint)

    monkeypatch.setattr(Canvas, "cover", watched_cover)
    monkeypatch.setattr(Canvas, "paint", watched_paint)
    Shapes(images=48, size=16, cache=False)
    assert dtypes == {np.dtype(np.float32)}


def test_drawing_uses_only_what_ieee_754_fixes() -> None:
    exact = {"abs", "add", "clip", "maximum", "minimum", "rint", "sqrt", "where"}
    plain = {"arange", "argsort", "array", "empty", "errstate", "flatnonzero", "full", "pi", "unique", "zeros"}
    types = {"float32", "floating", "int64", "uint8", "uint32", "uint64"}
    used = set()
    for file in Path(shapes.__file__).parent.glob("*.py"):
        if file.name == "picture_set.py":  # files and labels, no pixel
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np":
                used.add(node.attr)
            assert not (isinstance(node, ast.Import) and node.names[0].name in {"math", "torch"})
    assert used <= exact | plain | types
    assert {"sqrt", "rint"} <= used


def test_polynomials_stand_in_for_sine_and_angle() -> None:
    turns = np.linspace(-2, 2, 4001, dtype=np.float32)
    assert np.abs(sine(turns) - np.sin(2 * np.pi * turns)).max() < 2e-3
    angle = np.linspace(-0.49, 0.49, 1001, dtype=np.float32)
    x, y = np.cos(2 * np.pi * angle), np.sin(2 * np.pi * angle)
    assert np.abs(turns_of(x, y) - angle).max() < 2e-3


# What the pictures show -----------------------------------------------------------------------------------------------


def neighbour_accuracy(features: Tensor, labels: Tensor, k: int = 10) -> float:
    """Leave-one-out vote of the k nearest."""
    distance = torch.cdist(features, features).fill_diagonal_(float("inf"))
    index = distance.topk(k, largest=False).indices
    return (labels[index].mode(dim=1).values == labels).float().mean().item()


def test_colour_does_not_distinguish_kinds(pictures: Shapes) -> None:
    pixels = pictures.pixels.float() / 255
    mean_colour = pixels.mean(dim=(2, 3))
    # chance is 2.1 % and 25 %
    assert neighbour_accuracy(mean_colour, pictures.labels[:, 0]) < 0.05
    assert neighbour_accuracy(mean_colour, pictures.labels[:, 2]) < 0.33


def test_raw_pixels_are_hardly_informative(pictures: Shapes) -> None:
    flat = functional.normalize(pictures.pixels.flatten(1).float(), dim=1)
    assert neighbour_accuracy(flat, pictures.labels[:, 0]) < 0.10
    assert neighbour_accuracy(flat, pictures.labels[:, 1]) < 0.25
    assert neighbour_accuracy(flat, pictures.labels[:, 2]) < 0.45


def filter_responses(drawn: Shapes) -> Tensor:
    """Mean and spread of what random, untrained filters answer to the grey picture, standardised (N, D)."""
    grey = drawn.pixels.float().mean(dim=1, keepdim=True)
    grey = (grey - grey.mean(dim=(2, 3), keepdim=True)) / grey.std(dim=(2, 3), keepdim=True)
    generator = torch.Generator().manual_seed(0)
    features = []
    for side in (3, 5):
        first = torch.randn(32, 1, side, side, generator=generator)
        low = functional.conv2d(grey, first - first.mean(dim=(2, 3), keepdim=True)).abs()
        second = torch.randn(64, 32, 3, 3, generator=generator)
        second = second - second.mean(dim=(1, 2, 3), keepdim=True)
        high = functional.conv2d(functional.max_pool2d(low, 2), second).abs()
        features += [r.mean(dim=(2, 3)) for r in (low, high)] + [r.std(dim=(2, 3)) for r in (low, high)]
    joined = torch.cat(features, dim=1)
    return (joined - joined.mean(dim=0)) / joined.std(dim=0)


def test_kinds_of_a_family_look_alike(pictures: Shapes) -> None:
    features = filter_responses(pictures)
    kind = torch.arange(48)
    means = torch.stack([features[pictures.labels[:, 0] == k].mean(dim=0) for k in kind])
    alike = torch.cosine_similarity(means[:, None], means[None], dim=2)
    same_family = kind[:, None] // 4 == kind // 4
    within_family = alike[same_family & (kind[:, None] != kind)].mean()
    assert within_family > alike[~same_family].mean() + 0.1


def painted_without_objects(monkeypatch: pytest.MonkeyPatch, *, setting: bool) -> Shapes:
    def nothing(canvas: Canvas, kind: int) -> None:
        del kind
        canvas.pose(tilt=0.5)

    def bare(u: Floats, v: Floats) -> Floats:
        return 0 * (u + v) + 9

    painters = [(own if setting else bare, nothing, marks) for own, _, marks in painting._PAINTERS]
    monkeypatch.setattr(painting, "_PAINTERS", painters)
    return Shapes(images=1_440, cache=False)


@pytest.mark.long
def test_the_setting_identifies_the_kingdom_only(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = painted_without_objects(monkeypatch, setting=True)
    features = filter_responses(drawn)
    assert neighbour_accuracy(features, drawn.labels[:, 2]) > 0.5  # chance: a quarter
    assert neighbour_accuracy(features, drawn.labels[:, 1]) < 0.34  # a third, were the kingdom always right


@pytest.mark.long
def test_the_rest_of_the_background_is_uninformative(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = painted_without_objects(monkeypatch, setting=False)
    features = filter_responses(drawn)
    assert neighbour_accuracy(features, drawn.labels[:, 2]) < 0.32  # chance: .25 ± .011
    assert neighbour_accuracy(features, drawn.labels[:, 0]) < 0.05


# The cache ------------------------------------------------------------------------------------------------------------


def never(**_: object) -> Iterator[NDArray[np.uint8]]:
    raise AssertionError("drawn again")


def test_drawn_once(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Shapes(images=60, size=16)
    assert len(list(cache_home.iterdir())) == 1
    monkeypatch.setattr(picture_set, "paint_all", never)
    again = Shapes(images=60, size=16)
    assert torch.equal(first.pixels, again.pixels)
    with pytest.raises(AssertionError, match="drawn again"):
        Shapes(images=60, size=16, seed=1)


def test_cached_and_drawn_are_equal() -> None:
    assert torch.equal(Shapes(images=60, size=16).pixels, Shapes(images=60, size=16, cache=False).pixels)


def test_without_cache_nothing_is_written(cache_home: Path) -> None:
    Shapes(images=10, size=16, cache=False)
    assert not cache_home.exists()


def test_changing_pixels_leaves_the_cache_alone() -> None:
    drawn = Shapes(images=10, size=16)
    before = drawn.pixels.clone()
    drawn.pixels.zero_()
    assert torch.equal(Shapes(images=10, size=16).pixels, before)


@pytest.mark.parametrize("damage", [lambda data: data[:-7], lambda _: b"", lambda _: b"not an array"])
def test_a_damaged_file_is_drawn_again(cache_home: Path, damage: Callable[[bytes], bytes]) -> None:
    expected = Shapes(images=10, size=16).pixels.clone()
    (file,) = cache_home.iterdir()
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(damage(data))
    assert torch.equal(Shapes(images=10, size=16).pixels, expected)


def test_an_interrupted_drawing_leaves_nothing(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(**_: object) -> Iterator[NDArray[np.uint8]]:
        yield np.zeros((5, 3, 16, 16), dtype=np.uint8)
        raise KeyboardInterrupt

    monkeypatch.setattr(picture_set, "paint_all", stopped)
    with pytest.raises(KeyboardInterrupt):
        Shapes(images=10, size=16)
    assert list(cache_home.iterdir()) == []


@pytest.mark.parametrize("there", [True, False])
def test_a_cache_that_cannot_be_written_is_done_without(
    there: bool, cache_home: Path, read_only: Callable[[Path], None]
) -> None:
    if there:
        read_only(cache_home)
    else:
        cache_home.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="kept in memory only"):
        drawn = Shapes(images=10, size=16)
    assert torch.equal(drawn.pixels, Shapes(images=10, size=16, cache=False).pixels)
    assert torch.equal(pickle.loads(pickle.dumps(drawn)).pixels, drawn.pixels)


@pytest.mark.parametrize("cache", [True, False])
def test_travels_to_another_process(cache: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Shapes(images=200, size=32, cache=cache)
    sent = pickle.dumps(drawn)
    if cache:
        assert len(sent) < 20_000  # labels and names, not 600 kB of pixels
    monkeypatch.setattr(picture_set, "paint_all", never)
    arrived = pickle.loads(sent)
    assert torch.equal(arrived.pixels, drawn.pixels)
    assert torch.equal(arrived.labels, drawn.labels)
