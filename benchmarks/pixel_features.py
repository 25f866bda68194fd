"""Weak features of images, for trees that must hold on them: their pixels, projected at random.

    python -m benchmarks.pixel_features plants/ --split train --out plants-train.npz    # and --split val

Each image is scaled to 16 × 16 pixels, centred on its own mean, and projected to 128 dimensions by one fixed random
matrix. The file has the features and labels that `hirl embed` would write.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hirl.data import ImageSet, open_images

SIDE, DIM = 16, 128


def pixel_features(images: ImageSet) -> Tensor:
    """Features (N, 128) of all images."""
    small = [
        F.interpolate(images.read(index)[None].float() / 255, (SIDE, SIDE), mode="bilinear", antialias=True)
        for index in range(len(images))
    ]
    pixels = torch.cat(small).flatten(1)
    pixels -= pixels.mean(1, keepdim=True)
    return pixels @ torch.randn(pixels.shape[1], DIM, generator=torch.Generator().manual_seed(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="labelled images")
    parser.add_argument("--split", default="train")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    images = open_images(given.data, split=given.split)
    if images.labels is None:
        parser.error(f"{given.data} has no labels")
    np.savez(given.out, features=pixel_features(images).numpy(), labels=images.labels.numpy())
    print(f"{given.out}: {len(images):,} images")


if __name__ == "__main__":
    main()
