"""HIRL in a plain PyTorch training loop: only the three numbered lines below are needed.

The loop is SimCLR on scikit-learn's handwritten digits and takes a few seconds on a laptop:

    python examples/own_loop.py
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor, nn

import hirl


def two_views(images: Tensor) -> tuple[Tensor, Tensor]:
    """Two versions of each image, shifted by up to a pixel and with noise."""

    def view() -> Tensor:
        shift = torch.randint(-1, 2, (2,)).tolist()
        return torch.roll(images, shift, dims=(1, 2)).flatten(1) + 0.2 * torch.randn(len(images), 64)

    return view(), view()


def contrast(z: Tensor, other: Tensor, temperature: float = 0.2) -> Tensor:
    """The loss of finding the other view of each image among those of the batch."""
    similarities = F.normalize(z, dim=1) @ F.normalize(other, dim=1).T / temperature
    return F.cross_entropy(similarities, torch.arange(len(z)))


def main(epochs: int, start_epoch: int) -> None:
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.images).float() / 16
    encoder = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 64))
    paths = hirl.SemanticPaths(dim=64, levels=(160, 40, 10), negatives=100)  # 1: heads and tree
    optimiser = torch.optim.Adam([*encoder.parameters(), *paths.parameters()], lr=1e-3)

    for epoch in range(epochs):
        if epoch >= start_epoch:
            with torch.no_grad():
                paths.refresh(encoder.eval()(images.flatten(1)))  # 2: a new tree, once per epoch
        encoder.train()
        for index in torch.randperm(len(images)).split(256):
            one, other = two_views(images[index])
            z0 = encoder(one)
            loss_image = contrast(z0, encoder(other))
            loss_spd = paths(z0, index)  # 3: the loss, 0 before the first tree
            optimiser.zero_grad()
            (loss_image + loss_spd).backward()
            optimiser.step()
        print(f"epoch {epoch + 1:3d} of {epochs}: loss_image {loss_image:.3f}, loss_spd {loss_spd:.3f}")

    tree = paths.tree
    if tree is not None:
        for level, nodes in enumerate(tree.levels):
            agreement = normalized_mutual_info_score(digits.target, tree.image_paths[:, level])
            print(f"level {level}: {nodes} nodes, normalised mutual information with the digits {agreement:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--start-epoch", type=int, default=20, help="the first epoch with a tree")
    options = parser.parse_args()
    main(options.epochs, options.start_epoch)
