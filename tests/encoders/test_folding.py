"""Batch norms folded into convolutions give the same features, wherever that is possible and nowhere else."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers.std_conv import StdConv2d
from torch import Tensor, nn

from hirl.encoders import folding
from hirl.encoders.adapter import AdaptedNetwork
from hirl.encoders.folding import fold_batch_norms


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of this file count as known."""
    monkeypatch.setattr(folding, "KNOWN_PACKAGES", ("timm", "torchvision", __name__.partition(".")[0]))


def with_statistics(network: nn.Module) -> nn.Module:
    """Batch norms as after training: not the identity."""
    for norm in norms(network):
        if norm.running_mean is not None and norm.running_var is not None:
            nn.init.normal_(norm.running_mean, 0, 0.1)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0, 0.1)
    return network.eval()


def norms(network: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def relative_error(network: nn.Module, folded: nn.Module) -> float:
    images = torch.randn(2, 3, 64, 64, dtype=next(network.parameters()).dtype)
    with torch.no_grad():
        expected, found = network(images), folded(images)
    return float((expected - found).norm() / expected.norm())


@pytest.mark.parametrize(
    ("name", "left"), [("resnet18", 0), ("tf_efficientnet_lite0", 0), ("mobilenetv3_small_050", 0), ("resnetv2_50", 17)]
)
def test_the_features_of_published_networks_stay(name: str, left: int) -> None:
    network = with_statistics(timm.create_model(name, num_classes=0))
    before = copy.deepcopy(network.state_dict())
    folded = fold_batch_norms(network)
    assert len(norms(folded)) == left  # those of a pre-activation network that follow an addition
    assert relative_error(network, folded) < 1e-5
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in before.items())


def test_a_network_without_batch_norms_stays_as_it_is() -> None:
    network = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, depth=1)
    assert fold_batch_norms(network) is network


class Small(nn.Module):
    """A convolution, what `between` does with its output, and a batch norm."""

    def __init__(self, convolution: nn.Module | None = None, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3) if convolution is None else convolution
        self.norm = nn.BatchNorm2d(8) if norm is None else norm

    def between(self, output: Tensor) -> Tensor:
        return output

    def forward(self, images: Tensor) -> Tensor:
        output = self.convolution(images)
        normed: Tensor = self.norm(self.between(output))
        return normed


class Skipping(Small):
    def forward(self, images: Tensor) -> Tensor:
        output = self.convolution(images)
        return output + self.norm(output)


class Rectified(Small):
    def between(self, output: Tensor) -> Tensor:
        return F.relu_(output)  # the same tensor, changed in place


class OwnNorm(nn.BatchNorm2d):
    def forward(self, images: Tensor) -> Tensor:
        return 2 * super().forward(images)


class Twice(Small):
    def forward(self, images: Tensor) -> Tensor:
        once: Tensor = self.norm(self.convolution(images))
        return once + self.norm(once)


class DependsOnInput(nn.Module):
    """Cannot be traced, unlike its part."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Small()

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.part(images)
        return output if images.mean() > 0 else -output


class WeightsElsewhere(Small):
    def forward(self, images: Tensor) -> Tensor:
        weight = self.convolution.weight
        assert isinstance(weight, Tensor)
        return super().forward(images) + F.conv2d(images, weight)


class ByMode(Small):
    """In training mode another graph, which must not be the one that is folded."""

    def between(self, output: Tensor) -> Tensor:
        return output if self.training else F.relu(output)


def hooked() -> Small:
    network = Small()
    network.convolution.register_forward_hook(lambda *given: given[-1].abs())
    return network


@pytest.mark.parametrize("folds", [Small, DependsOnInput], ids=lambda kind: kind.__name__)
def test_a_norm_behind_a_convolution_is_folded(folds: type[nn.Module]) -> None:
    network = with_statistics(folds())
    folded = fold_batch_norms(network)
    assert norms(network)
    assert not norms(folded)
    assert relative_error(network, folded) < 1e-5


@pytest.mark.parametrize(
    "network",
    [
        Skipping(),
        Rectified(),
        Twice(),
        WeightsElsewhere(),
        ByMode(),
        hooked(),
        Small(convolution=StdConv2d(3, 8, 3)),
        Small(norm=OwnNorm(8)),
        Small(norm=nn.BatchNorm2d(8, track_running_stats=False)),
        Small().bfloat16(),
    ],
    ids=[
        "output used twice",
        "in place",
        "norm used twice",
        "weights used elsewhere",
        "other graph in training",
        "hook",
        "other convolution",
        "other norm",
        "no statistics",
        "half precision",
    ],
)
def test_other_norms_stay(network: nn.Module) -> None:
    with_statistics(network)
    folded = fold_batch_norms(network.train())
    network.eval()
    folded.eval()
    assert len(norms(folded)) == 1
    assert relative_error(network, folded) < 1e-6


def test_training_mode_does_not_matter() -> None:
    network = with_statistics(timm.create_model("resnet18", num_classes=0)).train()
    folded = fold_batch_norms(network)
    assert network.training
    assert not folded.training
    assert relative_error(network.eval(), folded) < 1e-5


def test_networks_of_others_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may do more than pass through their layers, also when traced."""
    monkeypatch.undo()
    network = with_statistics(Small())
    assert fold_batch_norms(network) is network
    published = with_statistics(timm.create_model("resnet18", num_classes=0))
    published.get_submodule("layer1").register_forward_hook(lambda *_: None)
    assert fold_batch_norms(published) is published


def test_the_frozen_part_of_an_adapted_network_is_folded() -> None:
    network = AdaptedNetwork(with_statistics(timm.create_model("resnet18", num_classes=0)), 512, hidden=8).eval()
    folded = fold_batch_norms(network)
    assert not norms(folded)
    assert relative_error(network, folded) < 1e-5
