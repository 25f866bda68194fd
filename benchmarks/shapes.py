"""Figures of the built-in picture set: drawing speed, KNN on raw pixels, accuracy of a network trained with labels.

python -m benchmarks.shapes                # all figures, a few minutes on two cores
python -m benchmarks.shapes --epochs 0     # without the network
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from hirl.data.shapes import Shapes
from hirl.data.shapes.class_tree import KINDS

console = Console(width=120)
LEVELS = ("kind", "family", "kingdom")


def speed(size: int, images: int) -> float:
    """Pictures per second on one core, the best of three."""
    seconds = []
    for seed in range(3):
        begun = time.perf_counter()
        Shapes(images=images, size=size, seed=seed, cache=False)
        seconds.append(time.perf_counter() - begun)
    return images / min(seconds)


def raw(drawn: Shapes) -> Tensor:
    return drawn.pixels.flatten(1).float() / 255  # (N, D)


@torch.no_grad()
def texture(drawn: Shapes) -> Tensor:
    """Mean and standard deviation of untrained filters' responses to the grey picture: no learning, no labels."""
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
        features += [f(r) for r in (low, high) for f in (lambda r: r.mean(dim=(2, 3)), lambda r: r.std(dim=(2, 3)))]
    return torch.cat(features, dim=1)


@torch.no_grad()
def pooled(network: nn.Sequential, drawn: Shapes) -> Tensor:
    """The network's features before its last layer."""
    return torch.cat([network[:-1](part.float() / 255 - 0.5) for part in drawn.pixels.split(500)])


def neighbours(
    train: Shapes, val: Shapes, features: Callable[[Shapes], Tensor], *, centred: bool = False, whitened: bool = False
) -> list[float]:
    """Accuracy in % per level of the weighted KNN vote (T = .07, best K)."""
    bank, query = features(train), features(val)  # (N, D)
    if centred or whitened:
        mean = bank.mean(dim=0)
        bank, query = bank - mean, query - mean
    if whitened:
        _, spread, axes = torch.linalg.svd(bank, full_matrices=False)
        turn = axes[:60].T / spread[:60]
        bank, query = bank @ turn, query @ turn
    similarity = functional.normalize(query, dim=1) @ functional.normalize(bank, dim=1).T
    accuracies = []
    for level in range(len(LEVELS)):
        ours, theirs = val.labels[:, level], train.labels[:, level]
        best = 0.0
        for k in (10, 20, 100, 200):
            weight, index = similarity.topk(k, dim=1)
            votes = torch.zeros(len(val), len(val.label_names[level]))
            votes.scatter_add_(1, theirs[index], (weight / 0.07).exp())
            best = max(best, (votes.argmax(dim=1) == ours).float().mean().item())
        accuracies.append(100 * best)
    return accuracies


def _network() -> nn.Sequential:
    def block(c_in: int, c_out: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)]

    blocks = ((3, 32, 1), (32, 48, 2), (48, 64, 1), (64, 96, 2), (96, 128, 1), (128, 192, 2), (192, 192, 1))
    body = [layer for widths in blocks for layer in block(*widths)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, len(KINDS)))


def _augment(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Crop of 20–100 % of the area, flip, brightness, contrast, saturation, mixed channels, grey."""
    B = len(pictures)

    def draw(low: float, high: float) -> Tensor:
        return torch.rand(B, generator=generator) * (high - low) + low

    area, ratio = draw(0.2, 1), draw(-0.288, 0.288).exp()
    w, h = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    theta = torch.zeros(B, 2, 3)
    theta[:, 0, 0] = w * torch.where(draw(0, 1) < 0.5, -1.0, 1.0)
    theta[:, 1, 1] = h
    theta[:, 0, 2], theta[:, 1, 2] = draw(-1, 1) * (1 - w), draw(-1, 1) * (1 - h)
    grid = functional.affine_grid(theta, list(pictures.shape), align_corners=False)
    x = functional.grid_sample(pictures, grid, padding_mode="reflection", align_corners=False)
    grey = x.mean(dim=1, keepdim=True)
    saturation = torch.where(draw(0, 1) < 0.2, torch.zeros(B), draw(0.6, 1.4))[:, None, None, None]
    x = grey + (x - grey) * saturation
    swap = torch.where(draw(0, 1) < 0.3, draw(-0.3, 0.3), torch.zeros(B))[:, None, None, None]
    x = x + swap * (x.roll(1, dims=1) - x)
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    x = (x - mean) * draw(0.6, 1.4)[:, None, None, None] + mean * draw(0.6, 1.4)[:, None, None, None]
    return x.clamp(0, 1)


def supervised(train: Shapes, *, epochs: int) -> nn.Sequential:
    """A small network trained on the labels of kinds only, not of families and kingdoms."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    network = _network()
    steps = epochs * (len(train) // 128)
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=3e-3, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(train), generator=generator)[: len(train) // 128 * 128].split(128):
            views = _augment(train.pixels[rows].float() / 255, generator) - 0.5
            loss = functional.cross_entropy(network(views), train.labels[rows, 0])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return network.eval()


@torch.no_grad()
def accuracy(network: nn.Sequential, pictures: Tensor, val: Shapes) -> list[float]:
    """Accuracy in % per level; a predicted kind implies its family and kingdom."""
    kind = torch.cat([network(part - 0.5).argmax(dim=1) for part in pictures.split(500)])
    columns = (kind, kind // 4, kind // 12)
    return [100 * (c == val.labels[:, i]).float().mean().item() for i, c in enumerate(columns)]


@torch.no_grad()
def likeness(network: nn.Sequential, val: Shapes) -> list[float]:
    """Mean cosine between the kinds' mean features: within a family, else within a kingdom, across kingdoms."""
    features = pooled(network, val)  # (N, D)
    features = features - features.mean(dim=0)
    kind = torch.arange(len(KINDS))
    means = functional.normalize(torch.stack([features[val.labels[:, 0] == k].mean(dim=0) for k in kind]), dim=1)
    cosine = means @ means.T
    family, kingdom = (kind[:, None] // n == kind // n for n in (4, 12))
    return [cosine[pairs].mean().item() for pairs in (family & (kind[:, None] != kind), kingdom & ~family, ~kingdom)]


def _percent(accuracies: list[float]) -> str:
    return ", ".join(f"{name} {value:.1f} %" for name, value in zip(LEVELS, accuracies, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10, help="epochs of the network trained with labels; 0 for none")
    parser.add_argument("--images", type=int, default=10_000, help="training images of the network")
    options = parser.parse_args()
    torch.set_num_threads(2)
    for size, images in ((32, 12_288), (64, 3_072), (224, 192)):
        console.print(f"drawing at {size:3d} px: {speed(size, images):,.0f} pictures/s on one core")
    train, val = Shapes(images=5_000), Shapes(images=1_000, split="val")
    torch.manual_seed(0)
    untrained = _network().train()
    with torch.no_grad():  # batch norm needs statistics; nothing is learnt
        for part in train.pixels.split(500):
            untrained(part.float() / 255 - 0.5)
    untrained.eval()
    for how, accuracies in (
        ("raw pixels", neighbours(train, val, raw)),
        ("raw pixels, mean picture subtracted", neighbours(train, val, raw, centred=True)),
        ("untrained network", neighbours(train, val, partial(pooled, untrained))),
        ("untrained network, mean subtracted", neighbours(train, val, partial(pooled, untrained), centred=True)),
        ("texture statistics, mean subtracted", neighbours(train, val, texture, centred=True)),
        ("texture statistics, whitened", neighbours(train, val, texture, whitened=True)),
    ):
        console.print(f"KNN on {how}: {_percent(accuracies)}")
    if options.epochs:
        begun = time.perf_counter()
        train, val = Shapes(images=options.images), Shapes(images=2_000, split="val")
        network = supervised(train, epochs=options.epochs)
        uncropped = val.pixels.float() / 255
        crops = _augment(uncropped, torch.Generator().manual_seed(1))
        for where, pictures in (("uncropped pictures", uncropped), ("augmented crops", crops)):
            console.print(f"network trained on kinds, {where}: {_percent(accuracy(network, pictures, val))}")
        near = likeness(network, val)
        console.print(f"cosine of its kinds: in a family {near[0]:.2f}, a kingdom {near[1]:.2f}, across {near[2]:.2f}")
        seconds = time.perf_counter() - begun
        console.print(f"({options.epochs} epochs of {options.images:,} pictures in {seconds:.0f} s)")


if __name__ == "__main__":
    main()
