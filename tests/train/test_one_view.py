"""A method with one masked view and a decoder fits the contract: MAE in small, with and without HIRL, from one file.

Kaiming He, Xinlei Chen, Saining Xie, Yanghao Li, Piotr Dollár and Ross Girshick. Masked Autoencoders Are Scalable
Vision Learners. CVPR 2022, arXiv:2111.06377.
"""

from __future__ import annotations

import copy
import importlib
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl.data import Shapes
from hirl.data.views import Mask, View
from hirl.data.views.draws import Ints, uniforms
from hirl.evals import KNN, Linear
from hirl.evals.evaluate import evaluate
from hirl.hierarchy.paths import SemanticPaths
from hirl.hierarchy.settings import Hierarchy
from hirl.methods import MoCoV2
from hirl.methods.base import Method, Output, Plan, Rates, warmed_up_cosine
from hirl.methods.facts import Facts, LinearTraining
from hirl.ranks import Ranks
from hirl.run import Run
from hirl.seeds import MASK_ATTEMPTS_FROM
from hirl.train import loop
from hirl.train.joint import Joint, mean_losses
from hirl.train.pretrain import pretrain

from ..jobs import Jobs, kill_before, serve
from ..small_methods import vit

SIZE, EPOCHS, BATCH = 16, 4, 16
IMAGES = Shapes(images=80, size=SIZE, cache=False)


@dataclass(frozen=True, kw_only=True)
class EvenMask(Mask):
    """Hides the same number of patches of every image, each equally likely."""

    patch: int
    hidden: int

    def draw(self, size: int, seed: int, epoch: int, samples: Ints, view: int) -> Tensor:
        side = size // self.patch
        numbers = uniforms(seed, epoch, samples, [view], range(MASK_ATTEMPTS_FROM, MASK_ATTEMPTS_FROM + side * side))[
            :, 0
        ]
        mask = np.zeros(numbers.shape, dtype=bool)
        np.put_along_axis(mask, numbers.argsort(axis=1)[:, : self.hidden], True, axis=1)
        return torch.from_numpy(mask.reshape(-1, side, side))


class MaskedAutoencoder(Method):
    """Predict the pixels of hidden patches from the visible ones.

    Args:
        backbone: timm name of a plain vision transformer.
        backbone_args: Further arguments of the backbone for timm.
        dim: Width of the backbone, whose class token is z⁰.
        lr: Peak learning rate of AdamW.
    """

    facts = Facts(linear=LinearTraining(optimiser="lars", lr=0.1, batch_size=16384, epochs=90), interpolation="bicubic")

    def __init__(
        self,
        *,
        backbone: str = "vit_tiny_patch16_224",
        backbone_args: dict[str, Any] | None = None,
        dim: int = 32,
        lr: float = 3e-3,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.backbone_args = backbone_args
        self.dim = dim
        self.lr = lr

    def build(self, plan: Plan) -> None:
        from hirl.encoders.backbones import make_backbone, patch_size

        self.plan = plan
        self.network: Any = make_backbone(self.backbone, **self.encoder_args)
        self.patch = patch_size(self.network) or 1
        self.mask_token = nn.Parameter(torch.zeros(1, 1, self.dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (plan.image_size // self.patch) ** 2, self.dim))
        self.decoder = nn.TransformerEncoderLayer(self.dim, 2, 2 * self.dim, dropout=0.0, batch_first=True)
        self.pixels = nn.Linear(self.dim, plan.channels * self.patch**2)

    @property
    def encoder(self) -> nn.Module:
        network: nn.Module = self.network
        return network

    def views(self, image_size: int) -> tuple[View, ...]:
        patch = image_size // 4
        return (View(size=image_size, scale=(0.2, 1.0), mask=EvenMask(patch=patch, hidden=12)),)

    def forward(self, views: list[Tensor], masks: list[Tensor | None], step: int) -> Output:  # noqa: ARG002
        (images,), (mask,) = views, masks
        assert mask is not None
        hidden = mask.flatten(1)  # (B, T)
        tokens = self.network._pos_embed(self.network.patch_embed(images))  # (B, 1 + T, D)
        visible = tokens[:, 1:][~hidden].view(len(images), -1, self.dim)
        latent = self.network.norm(self.network.blocks(torch.cat((tokens[:, :1], visible), dim=1)))
        full = self.mask_token.expand(len(images), hidden.shape[1], -1).clone()
        full[~hidden] = latent[:, 1:].flatten(0, 1)
        decoded = self.decoder(torch.cat((latent[:, :1], full + self.positions), dim=1))
        predicted = self.pixels(decoded[:, 1:][hidden])
        target = F.unfold(images, self.patch, stride=self.patch).transpose(1, 2)[hidden]
        return Output(loss=F.mse_loss(predicted, target), z0=latent[:, 0])

    def embed(self, images: Tensor) -> Tensor:
        z0: Tensor = self.network(images)
        return z0

    def param_groups(self, module: nn.Module) -> list[dict[str, Any]]:
        return [{"params": [weight for weight in module.parameters() if weight.requires_grad]}]

    def optimiser(self, groups: Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, lr=self.lr)

    @property
    def peak_lr(self) -> float:
        return self.lr

    def rates(self, step: int) -> Rates:
        lr = warmed_up_cosine(self.plan, step, peak=self.lr, warmup_epochs=1, start=0.0, end=0.0)
        return Rates(lr=lr, weight_decay=0.05)


def train(*, folder: str, features: Any = "bank", assign: Any = None, baseline: bool = False, kill_at: int = -1) -> Run:
    if kill_at >= 0:
        kill_before(loop.Loop, "_step", kill_at)
    hierarchy = Hierarchy(levels=(8, 3), negatives=4, start_epoch=1, features=features, assign=assign)
    options: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "accelerator": "cpu", "devices": 1, "workers": 0}
    method = MaskedAutoencoder(**vit(SIZE))
    return pretrain(
        IMAGES, method, None if baseline else hierarchy, out=folder, checkpoint_minutes=0.0, knn_every=2, **options
    )


def work(**job: Any) -> None:
    train(**job)


@pytest.mark.parametrize(
    "options", [{"baseline": True}, {}, {"features": "pass"}, {"assign": "step"}], ids=lambda options: str(options)
)
def test_it_trains_with_and_without_a_hierarchy(options: dict[str, Any], tmp_path: Path) -> None:
    run = train(folder=str(tmp_path / "run"), **options)
    lines = [line for line in run.metrics() if "loss_image" in line]
    assert lines[-1]["loss_image"] < lines[0]["loss_image"]
    if not options.get("baseline"):
        assert lines[-1]["loss_spd"] > 0
        assert len(run.tree.leaves) == len(IMAGES)
        assert not any("view_agreement" in line for line in run.metrics())  # there is no second view to agree


def test_z0_of_the_only_view_is_kept_and_looked_up() -> None:
    """In place of the second view's: for the bank, and for the leaf of every step."""
    method, plan = MaskedAutoencoder(**vit(SIZE)), Plan(EPOCHS, 5, BATCH, SIZE)
    torch.manual_seed(0)
    method.build(plan)
    paths = SemanticPaths(method.dim, (6, 2), negatives=3)
    paths.refresh(torch.randn(60, method.dim))
    (view,) = method.views(SIZE)
    assert view.mask is not None
    masks: list[Tensor | None] = [view.mask.draw(SIZE, 0, 0, np.arange(BATCH), 0)]
    images = [torch.rand(BATCH, 3, SIZE, SIZE)]
    found = Joint(method, paths, assign="step")(images, masks, torch.arange(BATCH), 0, 0, diagnose=True)
    assert torch.equal(found.target_z0, found.z0)
    assert not found.target_z0.requires_grad
    generator = torch.Generator().manual_seed(0)
    expected = paths(found.z0, target=found.z0, generator=generator)
    torch.testing.assert_close(found.spd, expected.detach())
    assert {"gradient_image", "gradient_spd"} <= found.diagnostics.keys()
    halved = found._replace(diagnostics={name: 0 * value for name, value in found.diagnostics.items()})
    means = mean_losses([found, halved], Ranks(None))
    torch.testing.assert_close(means.diagnostics["gradient_image"], found.diagnostics["gradient_image"] / 2)


def test_measuring_does_not_change_the_network() -> None:
    """Without heads the second view passes the encoder once more: its running statistics must stay as they are."""
    method = MoCoV2(backbone="resnet10t", backbone_args={"channels": [8, 8, 8, 8]}, dim=8, queue_length=32, bn_splits=1)
    torch.manual_seed(0)
    method.build(Plan(EPOCHS, 5, BATCH, SIZE))
    paths = SemanticPaths(8, (6, 2), loss="nodes", head_layers=0)
    paths.refresh(torch.randn(60, 8))
    images = [torch.rand(BATCH, 3, SIZE, SIZE) for _ in range(2)]
    after = []
    for diagnose in (False, True):
        joint = Joint(copy.deepcopy(method), paths)
        torch.manual_seed(0)
        joint(images, [None, None], torch.arange(BATCH), 0, 0, diagnose=diagnose)
        assert all(layer.training for layer in joint.method.encoder.modules())
        after.append(joint.method.state_dict())
    assert all(torch.equal(after[0][name], after[1][name]) for name in after[0])


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    jobs = Jobs("train.test_one_view")
    yield jobs
    jobs.close()


@pytest.mark.parametrize("baseline", [False, True])
def test_killed_and_continued_it_ends_in_equal_bits(baseline: bool, jobs: Jobs, tmp_path: Path) -> None:
    killed, alone = tmp_path / "killed", tmp_path / "alone"
    for folder, kill_at, expected in ((killed, 12, -signal.SIGKILL), (killed, -1, 0), (alone, -1, 0)):
        code, output = jobs(folder=str(folder), kill_at=kill_at, baseline=baseline)
        assert code == expected, output
    assert "continues at step 12" in (killed / "log.txt").read_text()
    for file in ("encoder.safetensors", *(() if baseline else ("tree.safetensors",))):
        assert (killed / file).read_bytes() == (alone / file).read_bytes()


def test_it_is_evaluated_as_its_facts_say(tmp_path: Path) -> None:
    """They are known once the user names the class; a run folder may not."""
    run = train(folder=str(tmp_path / "run"))
    options: dict[str, Any] = {"data": IMAGES, "test_data": IMAGES, "device": "cpu", "quiet": True}
    official = Linear(setting="official", epochs=2)
    with pytest.raises(ValueError, match="trained by 'MaskedAutoencoder', which has no official linear setting"):
        evaluate(run, official, **options)
    found = evaluate(run, official, KNN(ks=(5,)), method=MaskedAutoencoder, **options)
    assert found["linear"].chosen["optimiser"] == "lars"
    assert 0 < found["knn"].headline[next(iter(found["knn"].headline))] <= 1


if __name__ == "__main__":
    for name in ("timm", "torch.utils.tensorboard"):
        importlib.import_module(name)
    serve(work)
