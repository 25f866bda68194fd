"""A part of a labelled set as one .npz file, small enough for a study of many runs on two CPU cores.

    python -m benchmarks.study_set FOLDER --images 10000 --out small.npz
    python -m benchmarks.study_set FOLDER --images 10000 --held_out 10000 --out choosing.npz
    python -m benchmarks.study_set grocery/ --test_part test --half even --out choosing.npz
    python -m benchmarks.study_set grocery/ --test_part test --half odd --out grocery.npz
    python -m benchmarks.study_set fashion-mnist/ --images 10000 --fashion --out fashion.npz

The training split has all images, or with `--images` equally many of each class, the first ones of a shuffle with a
fixed seed. The test split is the set's own. For choosing settings without a look at the images that are reported on,
`--held_out` takes that many training images instead, which come next in the same shuffle; where near duplicates within
the training split would make that too easy, `--half` takes every second test image.
The images must be of one size.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hirl.data import ImageSet, open_images

# Fashion-MNIST has no label levels of its own: T-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag,
# ankle boot -> tops, trousers, dresses, footwear, bags -> clothes, footwear, bags.
FASHION = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 1, 0, 2, 0, 3, 0, 3, 4, 3], [0, 0, 0, 0, 0, 1, 0, 1, 2, 1]])


def balanced(labels: Tensor, count: int, *, skip: int = 0, seed: int = 0) -> Tensor:
    """Numbers of `count` images with equally many of each class, after the first `skip` of the same shuffle."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    rank = torch.zeros_like(labels)
    for label in labels.unique():
        members = order[labels[order] == label]
        rank[members] = torch.arange(len(members))
    classes = len(labels.unique())
    chosen = ((rank >= skip // classes) & (rank < (skip + count) // classes)).nonzero().flatten()
    if len(chosen) != count // classes * classes:
        raise SystemExit(f"the set has too few images per class for {skip + count:,} in {classes} classes")
    return chosen


def arrays(images: ImageSet, chosen: Tensor, *, fashion: bool) -> tuple[np.ndarray, np.ndarray]:
    """Pixels, (n, H, W, C), and labels, (n, label levels), of the chosen images."""
    assert images.labels is not None
    labels = FASHION.T[images.labels[chosen, 0]] if fashion else images.labels[chosen]
    pixels = torch.stack([images.read(int(number)) for number in chosen])
    return pixels.permute(0, 2, 3, 1).numpy(), labels.numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a part of a labelled set as one .npz file.")
    parser.add_argument("data", help="labelled images with a training and a test split")
    parser.add_argument("--images", type=int, help="training images; by default all")
    parser.add_argument("--test_part", default="val", help="name of the part to test on")
    parser.add_argument("--half", choices=("even", "odd"), help="test on every second image of that part")
    parser.add_argument("--held_out", type=int, help="test on this many images held out of the training split")
    parser.add_argument("--fashion", action="store_true", help="add two coarser label levels to Fashion-MNIST")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    train = open_images(args.data, split="train")
    if train.labels is None:
        raise SystemExit(f"{args.data} has no labels")
    finest = train.labels[:, 0]
    if args.held_out:
        if not args.images or args.half:
            parser.error("--held_out needs --images and goes without --half")
        test, tested = train, balanced(finest, args.held_out, skip=args.images)
    else:
        test = open_images(args.data, split=args.test_part)
        tested = torch.arange(1 if args.half == "odd" else 0, len(test), 2 if args.half else 1)
    trained = balanced(finest, args.images) if args.images else torch.arange(len(train))
    parts = {"train": (train, trained), "val": (test, tested)}
    content: dict[str, np.ndarray] = {}
    for part, (images, chosen) in parts.items():
        content[f"{part}_images"], content[f"{part}_labels"] = arrays(images, chosen, fashion=args.fashion)
    np.savez(args.out, allow_pickle=False, **content)
    print(f"{args.out}: {len(content['train_images']):,} training and {len(content['val_images']):,} test images")


if __name__ == "__main__":
    main()
