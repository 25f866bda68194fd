"""The loader: the same views whatever the workers, ranks and interruptions; bad files; the evaluation's picture."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data._utils.pin_memory import pin_memory
from torchvision.transforms import v2

from hirl.data.loader import EvaluationLoader, Loader
from hirl.data.sources import BadImage, ImageSet, in_memory, open_images
from hirl.data.sources.image_set import Subset
from hirl.data.views import Blur, Jitter, View, multi_crop
from hirl.data.views.masks import mask_on_cpu
from hirl.data.views.render import Batch, Piece, ViewRenderer, join
from hirl.methods import IBOT, SwAV

VIEWS = IBOT(backbone_args={"img_size": 32, "patch_size": 8}, local_crops=2).views(32)


@pytest.fixture
def memory() -> ImageSet:
    rng = np.random.default_rng(0)
    return open_images(rng.integers(0, 256, (50, 3, 32, 32), dtype=np.uint8))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageSet:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for number in range(22):
        blocks = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        blocks.resize((60 + number, 80 - number)).save(folder / f"{number:02}.jpg")
    return open_images(folder)


def spoil(images: ImageSet, *indices: int) -> None:
    for index in indices:
        Path(images.path(index)).write_bytes(b"no image")


def epoch_of(loader: Loader, epoch: int = 1, start: int = 0) -> list[Batch]:
    loader.set_epoch(epoch, start)
    return list(loader)


def assert_same(ours: Iterable[Batch], theirs: Iterable[Batch]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.index, b.index)
        for one, other in zip([*a.views, *a.masks], [*b.views, *b.masks], strict=True):
            if one is None or other is None:
                assert one is other
            else:
                assert torch.equal(one, other)


def joined(batches: Iterable[Batch]) -> Batch:
    """The ranks' shares of one global batch, put together."""
    parts = list(batches)
    masks: list[Tensor | None] = []
    for columns in zip(*(p.masks for p in parts), strict=True):
        present = [mask for mask in columns if mask is not None]
        masks.append(torch.cat(present) if present else None)
    views = [torch.cat(columns) for columns in zip(*(p.views for p in parts), strict=True)]
    return Batch(torch.cat([p.index for p in parts]), views, masks)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores, on purpose
@pytest.mark.parametrize("kind", ["memory", "files"])
def test_any_number_of_workers_gives_the_same(kind: str, request: pytest.FixtureRequest) -> None:
    images = request.getfixturevalue(kind)
    alone = epoch_of(Loader(images, VIEWS, batch_size=8, workers=0))
    for workers in (1, 3):
        loader = Loader(images, VIEWS, batch_size=8, workers=workers)
        epoch_of(loader, epoch=0)  # workers are running, and keep running, when the epoch is set
        assert_same(epoch_of(loader), alone)


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_two_ranks_see_what_one_would(kind: str, request: pytest.FixtureRequest) -> None:
    images = request.getfixturevalue(kind)
    alone = epoch_of(Loader(images, VIEWS, batch_size=8, workers=0))
    ranks = [epoch_of(Loader(images, VIEWS, batch_size=8, workers=0, rank=r, world_size=2)) for r in range(2)]
    assert_same([joined(shares) for shares in zip(*ranks, strict=True)], alone)


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_a_restart_in_mid_epoch_gives_the_rest(kind: str, request: pytest.FixtureRequest) -> None:
    images = request.getfixturevalue(kind)
    together = epoch_of(Loader(images, VIEWS, batch_size=4, workers=0), epoch=3)
    assert_same(epoch_of(Loader(images, VIEWS, batch_size=4, workers=0), epoch=3, start=2), together[2:])


def test_an_iteration_left_early_does_not_disturb_the_next(files: ImageSet) -> None:
    loader = Loader(files, VIEWS, batch_size=4, workers=2)
    for _ in loader:
        break
    assert_same(epoch_of(loader, epoch=2), epoch_of(Loader(files, VIEWS, batch_size=4, workers=0), epoch=2))


def test_global_generators_play_no_part_and_are_left_alone(memory: ImageSet) -> None:
    torch.manual_seed(0)
    first = epoch_of(Loader(memory, VIEWS, batch_size=10))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(1)
    again = epoch_of(Loader(memory, VIEWS, batch_size=10))
    assert_same(first, again)
    torch.manual_seed(0)
    epoch_of(Loader(memory, VIEWS, batch_size=10))
    assert torch.equal(torch.rand(3), expected)


def test_pieces_of_a_large_batch_are_put_together(files: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    together = epoch_of(Loader(files, VIEWS, batch_size=20, workers=0))
    monkeypatch.setattr("hirl.data.loader._LARGEST_PIECE", 3)
    assert_same(epoch_of(Loader(files, VIEWS, batch_size=20, workers=0)), together)


def test_epochs_and_seeds_differ_and_cover_everything(memory: ImageSet) -> None:
    def first_view(seed: int, epoch: int) -> Tensor:
        loader = Loader(memory, VIEWS, batch_size=50, seed=seed)
        (batch,) = epoch_of(loader, epoch)
        assert batch.index.sort().values.equal(torch.arange(50))
        return batch.views[0][batch.index.argsort()]

    base = first_view(0, 0)
    assert not torch.equal(base, first_view(0, 1))
    assert not torch.equal(base, first_view(1, 0))


def test_shapes_lengths_and_masks(memory: ImageSet) -> None:
    loader = Loader(memory, VIEWS, batch_size=16, drop_last=False)
    batches = epoch_of(loader)
    assert [len(batch) for batch in batches] == [16, 16, 16, 2]
    assert len(loader) == 4
    assert len(Loader(memory, VIEWS, batch_size=16)) == 3
    batch = batches[0]
    assert [tuple(view.shape) for view in batch.views] == [(16, 3, 32, 32)] * 2 + [(16, 3, 16, 16)] * 2
    assert [None if mask is None else tuple(mask.shape) for mask in batch.masks] == [(16, 4, 4)] * 2 + [None] * 2
    assert all(view.dtype == torch.float32 for view in batch.views)
    assert loader.waited > 0


def test_arrays_and_files_show_the_same_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batched and the per-image path, on the same pixels, differ by rounding to uint8 only."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = np.random.default_rng(5)
    pixels = rng.integers(0, 256, (6, 40, 40, 3), dtype=np.uint8)
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
    views = multi_crop((View(size=32, jitter=Jitter()), View(size=32, blur=Blur())), View(size=16), 1)
    options: dict[str, Any] = {"batch_size": 6, "mean": (0.0,) * 3, "std": (1.0,) * 3, "workers": 0}
    (memory,) = epoch_of(Loader(open_images(pixels), views, **options))
    (files,) = epoch_of(Loader(open_images(tmp_path), views, **options))
    assert torch.equal(memory.index, files.index)
    for one, other in zip(memory.views, files.views, strict=True):
        assert (one - other).abs().mean() < 1.5 / 255


def test_colours_may_be_left_to_another_device(files: ImageSet) -> None:
    """Workers then hand over uint8 crops, and the main process ends up with the very same views."""
    loader = Loader(files, VIEWS, batch_size=8, workers=0)
    (expected, *_) = epoch_of(loader)
    renderer = loader.renderer
    elsewhere = ViewRenderer(
        files,
        VIEWS,
        seed=0,
        normalisation=loader.normalisation,
        device=torch.device("meta"),  # stands in for a GPU: only its not being the CPU matters to it
        strict=False,
    )
    halves = [elsewhere.render_in_worker(indices.numpy(), 1) for indices in expected.index.split(4)]
    assert all(group.dtype == torch.uint8 for half in halves for group in half.groups)
    assert_same([renderer.finish_on_device(join(halves), 1)], [expected])


class Work(TorchDispatchMode):
    """Notes the names of operations on the device and the shapes of copies to it."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.uploads: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.device.type == "meta":
            self.operations.append(func.overloadpacket.__name__)
            if any(isinstance(arg, Tensor) and arg.device.type == "cpu" for arg in args):
                self.uploads.append(tuple(result.shape))
        return result


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_copies_to_a_gpu_are_few_and_nothing_comes_back(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the meta device, which stands in for a GPU: it has no values, so reading any would raise an error."""
    monkeypatch.setattr("hirl.data.loader._LARGEST_PIECE", 10)
    images = request.getfixturevalue(kind)
    loader = Loader(images, VIEWS, batch_size=20, workers=0, device="meta")
    epoch_of(loader)  # mean and std are copied once
    with Work() as work:
        batch = next(iter(loader))
    assert all(view.is_meta for view in batch.views)
    assert batch.index.is_meta
    crops: list[tuple[int, ...]]
    if kind == "files":  # two sizes in two pieces, concatenated on the device
        crops = [(2, 10, 3, 32, 32), (2, 10, 3, 16, 16)] * 2
        assert work.operations.count("cat") == 2
    else:  # the images, and for each of four views the boxes
        crops = [(20, 3, 32, 32), *[(20, 5)] * 4]
    assert work.uploads[: len(crops)] == crops
    colours, rest = work.uploads[len(crops) : len(crops) + 4], work.uploads[len(crops) + 4 :]
    assert [shape for shape in colours if len(shape) == 2] == [(40, 5)] * 2  # per size the parameters, and the rows
    assert rest == [(20, 4, 4)] * 2 + [(20,)]  # masks and index


def test_masks_on_a_gpu_carry_those_on_the_cpu_along(memory: ImageSet) -> None:
    elsewhere, here = (epoch_of(Loader(memory, VIEWS, batch_size=50, device=device))[0] for device in ("meta", "cpu"))
    for sent, mask in zip(elsewhere.masks[:2], here.masks[:2], strict=True):
        assert sent is not None
        assert mask is not None
        assert sent.is_meta
        assert torch.equal(mask_on_cpu(sent), mask)
        assert mask_on_cpu(mask) is mask


def test_crops_for_a_gpu_are_pinned(files: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """By DataLoader, which calls this function on what workers hand over; without a GPU nothing can be pinned."""
    pinned: list[Tensor] = []

    def pin(tensor: Tensor) -> Tensor:
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    piece = Loader(files, VIEWS, batch_size=8, workers=0).renderer.render_in_worker(np.arange(4), 0)
    elsewhere = torch.empty(2, 4, 3, 32, 32, device="meta")
    made = pin_memory(Piece(piece.index, [*piece.groups, elsewhere], piece.masks, []))
    assert [id(tensor) for tensor in pinned] == [id(group) for group in piece.groups]
    assert isinstance(made, Piece)
    assert made.groups[-1] is elsewhere


def test_mean_and_std_are_copied_to_a_device_once(memory: ImageSet) -> None:
    first, again = (Loader(memory, VIEWS, batch_size=8).normalisation.tensors(torch.device("meta")) for _ in range(2))
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_the_number_of_threads_is_left_as_it_was(memory: ImageSet) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        epoch_of(Loader(memory, VIEWS, batch_size=10))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_workers_are_given_can_be_pickled(files: ImageSet) -> None:
    renderer = Loader(files, VIEWS, batch_size=8, workers=0).renderer
    copy = pickle.loads(pickle.dumps(renderer))
    assert_same(
        [copy.finish_on_device(copy.render_in_worker(np.arange(3), 0), 0)],
        [renderer.finish_on_device(renderer.render_in_worker(np.arange(3), 0), 0)],
    )


def test_one_channel() -> None:
    grey = open_images(np.random.default_rng(0).integers(0, 256, (12, 32, 32), dtype=np.uint8), channels=1)
    (batch,) = epoch_of(Loader(grey, SwAV().views(32), batch_size=12))
    assert batch.views[0].shape == (12, 1, 32, 32)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_files_are_replaced_and_recorded_once(files: ImageSet, workers: int) -> None:
    (together,) = epoch_of(Loader(files, VIEWS, batch_size=22, workers=0))
    clean = dict(zip(together.index.tolist(), together.views[0], strict=True))
    spoil(files, 5, 6, 21)
    loader = Loader(files, VIEWS, batch_size=11, workers=workers)
    for epoch in (0, 1):
        batches = epoch_of(loader, epoch)
    index = torch.cat([batch.index for batch in batches])
    assert sorted(index.tolist()) == sorted([*({*range(22)} - {5, 6, 21}), 7, 7, 0])
    for number, view in zip(index, torch.cat([b.views[0] for b in batches]), strict=True):
        assert torch.equal(view, clean[int(number)])  # a replacement keeps its own views
    assert [bad.index for bad in loader.skipped] == [5, 6, 21]


@pytest.mark.parametrize("workers", [0, 1])
def test_strict_raises_at_the_first_bad_file(files: ImageSet, workers: int) -> None:
    spoil(files, 5)
    with pytest.raises(BadImage, match=r"05\.jpg"):
        epoch_of(Loader(files, VIEWS, batch_size=22, workers=workers, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_matches_torchvision(files: ImageSet, workers: int) -> None:
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    loader = EvaluationLoader(files, size=32, resize=40, batch_size=8, workers=workers, mean=mean, std=std)
    batches = list(loader)
    assert torch.cat([batch.index for batch in batches]).equal(torch.arange(22))
    assert len(batches) == len(loader) == 3
    reference = v2.Compose(
        [
            v2.Resize(40, antialias=True),
            v2.CenterCrop(32),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(mean, std),
        ]
    )
    expected = torch.stack([reference(files.read(index)) for index in range(22)])
    torch.testing.assert_close(torch.cat([batch.views[0] for batch in batches]), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("width", "height"), [(240, 291), (512, 384), (640, 480), (601, 451), (1200, 904)])
def test_evaluation_sees_a_large_jpeg_as_if_decoded_in_full(width: int, height: int, tmp_path: Path) -> None:
    """Up to the decoder's own reduction, which is by what divides: neither stretched nor shifted."""
    dice = np.random.default_rng(0)
    noise = Image.fromarray(dice.integers(0, 256, (60, 80, 3), dtype=np.uint8))
    noise.resize((width, height), Image.Resampling.BICUBIC).save(tmp_path / "1.jpg", quality=95)
    images = open_images(tmp_path)
    (batch,) = EvaluationLoader(images, size=48, workers=0, mean=(0.0,) * 3, std=(1.0,) * 3)
    expected = v2.CenterCrop(48)(v2.Resize(48, antialias=True)(images.read(0))) / 255
    # Measured: 0.0092 at most; reduced to no less than the resized side, by any number of eighths, 0.047.
    assert (batch.views[0][0] - expected).abs().mean() < 0.01


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_marks_what_cannot_be_read(files: ImageSet, workers: int) -> None:
    spoil(files, 5, 6, 21)
    loader = EvaluationLoader(files, size=32, batch_size=8, workers=workers)
    batches = list(loader)
    assert (~torch.cat([batch.readable for batch in batches])).nonzero().flatten().tolist() == [5, 6, 21]
    some = list(loader.batches(np.array([4, 5, 9])))
    assert torch.cat([batch.readable for batch in some]).tolist() == [True, False, True]
    assert some[0].index.tolist() == [4, 7, 9]


def test_a_set_in_memory_knows_what_could_not_be_read(tmp_path: Path) -> None:
    """Training counts the stand-in under its own index, evaluation marks it, as with files."""
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number:02d}.png")
    for number in (4, 5, 11):
        (tmp_path / f"{number:02d}.png").write_bytes(b"broken")
    held = in_memory(open_images(tmp_path))
    assert held.pixels is not None
    for images, bad in ((held, [4, 5, 11]), (Subset(held, torch.tensor([0, 5, 7, 11])), [1, 3])):
        loader = Loader(images, VIEWS, batch_size=len(images))
        (batch,) = epoch_of(loader)
        assert not set(batch.index.tolist()) & set(bad)
        (shown,) = EvaluationLoader(images, size=32)
        assert (~shown.readable).nonzero().flatten().tolist() == bad
    assert Loader(Subset(held, torch.tensor([5, 7])), VIEWS, batch_size=2).renderer._actual.tolist() == [1, 1]  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="none of the 1 images can be read"):
        EvaluationLoader(Subset(held, torch.tensor([5])), size=32)


def test_evaluation_of_small_arrays_changes_nothing_but_the_range(memory: ImageSet) -> None:
    assert memory.pixels is not None
    (batch,) = EvaluationLoader(memory, size=32, mean=(0.0,) * 3, std=(1.0,) * 3)
    torch.testing.assert_close(batch.views[0], memory.pixels / 255)


def test_evaluation_ranks_share_the_images_without_repeats(memory: ImageSet) -> None:
    shares = [
        torch.cat([batch.index for batch in EvaluationLoader(memory, size=32, rank=rank, world_size=3, batch_size=7)])
        for rank in range(3)
    ]
    assert torch.cat(shares).sort().values.equal(torch.arange(50))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 51}, "only 50 images"),
        ({"batch_size": 9, "world_size": 2}, "multiple of the 2 processes"),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "rank is 2"),
        ({"batch_size": 4, "workers": -1}, "workers is -1"),
        ({"batch_size": 4, "workers": 2, "device": "cuda"}, "made on cuda itself"),
        ({"batch_size": 4, "mean": (0.5,)}, "mean has 1 values"),
        ({"batch_size": 4, "std": (0.5, 0.0, 0.5)}, "above 0"),
    ],
)
def test_mistakes_are_named(memory: ImageSet, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Loader(memory, VIEWS, **options)


def test_more_mistakes_are_named(memory: ImageSet) -> None:
    with pytest.raises(ValueError, match="views is empty"):
        Loader(memory, (), batch_size=4)
    with pytest.raises(ValueError, match="start_batch 99"):
        Loader(memory, VIEWS, batch_size=4).set_epoch(0, 99)
    with pytest.raises(ValueError, match="at most resize"):
        EvaluationLoader(memory, size=32, resize=30)
    with pytest.raises(ValueError, match="bicubic"):
        EvaluationLoader(memory, size=32, interpolation="nearest")
