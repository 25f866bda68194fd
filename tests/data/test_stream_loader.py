"""Views of tar shards: each image once an epoch, the same for the same seed, whatever the batch size."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hirl.data import BadImage, Loader, Skipped, StreamLoader, in_memory, open_images, open_source
from hirl.data.sources import ImageStream
from hirl.methods import IBOT, MoCoV2

SHARDS, EACH = 4, 23
PAIR = MoCoV2().views(32)


def shards(folder: Path, *, broken: int | None = None) -> ImageStream:
    generator = np.random.default_rng(0)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as archive:
            for place in range(EACH):
                data = io.BytesIO()
                Image.fromarray(generator.integers(0, 256, (36, 40, 3), dtype=np.uint8)).save(data, "PNG")
                content = b"broken" if broken == shard * EACH + place else data.getvalue()
                entry = tarfile.TarInfo(f"{place:04d}.png")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    opened = open_source(folder)
    assert isinstance(opened, ImageStream)
    return opened


def views_by_image(loader: StreamLoader) -> dict[int, list[torch.Tensor]]:
    return {int(i): [view[row] for view in batch.views] for batch in loader for row, i in enumerate(batch.index)}


def test_each_image_once_with_views_of_its_own(tmp_path: Path) -> None:
    stream = shards(tmp_path)
    made = {
        (workers, size): views_by_image(StreamLoader(stream, PAIR, batch_size=size, workers=workers, buffer=10))
        for workers, size in ((0, 1), (0, 4), (2, 1))
    }
    assert all(len(images) == SHARDS * EACH for images in made.values())
    first = made[0, 1]
    for images in made.values():
        for index, views in images.items():
            assert all(torch.equal(one, other) for one, other in zip(views, first[index], strict=True))


def test_ranks_share_the_stream_and_epochs_differ(tmp_path: Path) -> None:
    stream = shards(tmp_path)
    loaders = [StreamLoader(stream, PAIR, batch_size=1, rank=rank, world_size=2) for rank in (0, 1)]
    parts = [views_by_image(loader) for loader in loaders]
    assert not parts[0].keys() & parts[1].keys()
    assert len(parts[0]) + len(parts[1]) == SHARDS * EACH
    alone = StreamLoader(stream, PAIR, batch_size=1)
    first = views_by_image(alone)
    alone.set_epoch(1)
    second = views_by_image(alone)
    assert first.keys() == second.keys()
    assert not any(torch.equal(first[index][0], second[index][0]) for index in first)


def test_batches_are_complete_and_masks_come_along(tmp_path: Path) -> None:
    method = IBOT(backbone_args={"img_size": 32, "patch_size": 8}, local_crops=2)
    loader = StreamLoader(shards(tmp_path), method.views(32), batch_size=30)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [30] * (SHARDS * EACH // 30)
    assert batches[0].views[0].shape == (30, 3, 32, 32)
    assert batches[0].masks[0] is not None
    assert batches[0].masks[0].shape == (30, 4, 4)
    assert loader.waited > 0


def test_a_gpu_is_never_read_from(tmp_path: Path) -> None:
    """On the meta device, which stands in for a GPU: it has no values, so reading any would raise an error."""
    loader = StreamLoader(shards(tmp_path), PAIR, batch_size=30, device="meta")
    batches = list(loader)
    assert len(batches) == SHARDS * EACH // 30
    assert all(view.is_meta and view.shape == (30, 3, 32, 32) for batch in batches for view in batch.views)


def test_views_are_those_of_an_indexed_set(tmp_path: Path) -> None:
    """The first shard's numbers are its places, so a folder of the same pictures gives the same views."""
    stream = shards(tmp_path)
    one = ImageStream(name="one shard", shards=stream.shards[:1])
    pictures = [sample.image for sample in one.read(seed=0, epoch=0)]
    arrays = in_memory(open_images(torch.stack(pictures)))
    indexed = next(iter(Loader(arrays, PAIR, batch_size=EACH, shuffle=False)))
    streamed = views_by_image(StreamLoader(one, PAIR, batch_size=1))
    for row in range(EACH):
        # an array is cropped in a batch and a stream image by image: they agree to the rounding of a pixel
        torch.testing.assert_close(streamed[row][0], indexed.views[0][row], atol=0.06, rtol=0)


def test_a_stream_too_short_for_a_batch_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"batch_size is 256, but this rank got only 92 images"):
        list(StreamLoader(shards(tmp_path), PAIR, batch_size=256))


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_left_out_or_raised(tmp_path: Path, workers: int) -> None:
    stream = shards(tmp_path, broken=30)
    skipped = Skipped()
    made = views_by_image(StreamLoader(stream, PAIR, batch_size=1, workers=workers, skipped=skipped))
    assert len(made) == SHARDS * EACH - 1
    assert len(skipped) == 1
    with pytest.raises(BadImage, match="not an image"):
        list(StreamLoader(stream, PAIR, batch_size=1, workers=workers, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"workers": 5}, "4 shard"),
        ({"world_size": 5}, "at least as many shards as readers"),
        ({"rank": 2, "world_size": 2}, "rank is 2"),
        ({"buffer": -1}, "buffer is -1"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StreamLoader(shards(tmp_path), PAIR, **({"batch_size": 1} | options))  # type: ignore[arg-type]
