"""HIRL in a LightningModule: the module adds the loss, a callback builds the trees.

SimCLR on scikit-learn's handwritten digits, a few seconds on a laptop; --devices 2 trains with two processes:

    python examples/lightning_digits.py
"""

from __future__ import annotations

import argparse

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hirl
from hirl.integrations.lightning import SemanticPathsCallback


class SimCLR(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 64))
        self.paths = hirl.SemanticPaths(dim=64, levels=(160, 40, 10), negatives=100)  # 1: heads and tree

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:  # noqa: ARG002
        images, index = batch
        z0, other = (self.encoder(images + 0.2 * torch.randn_like(images)) for _ in range(2))
        similarities = F.normalize(z0, dim=1) @ F.normalize(other, dim=1).T / 0.2
        loss_image = F.cross_entropy(similarities, torch.arange(len(z0), device=z0.device))
        loss_spd = self.paths(z0, index)  # 2: the loss, 0 before the first tree
        self.log_dict({"loss_image": loss_image, "loss_spd": loss_spd}, on_epoch=True, on_step=False)
        return loss_image + loss_spd

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main(epochs: int, start_epoch: int, devices: int) -> None:
    pl.seed_everything(0)
    images = torch.from_numpy(load_digits().data).float() / 16
    loader = DataLoader(TensorDataset(images, torch.arange(len(images))), batch_size=256 // devices, shuffle=True)
    trees = SemanticPathsCallback(start_epoch=start_epoch)  # 3: a new tree after every epoch
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        callbacks=[trees],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = SimCLR()
    trainer.fit(model, loader)
    if trainer.is_global_zero:
        figures = ", ".join(f"{name} {float(value):.3f}" for name, value in trainer.logged_metrics.items())
        print(f"after {epochs} epochs: {figures}; {model.paths.tree}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--start-epoch", type=int, default=20, help="the first epoch with a tree")
    parser.add_argument("--devices", type=int, default=1, help="processes")
    options = parser.parse_args()
    main(options.epochs, options.start_epoch, options.devices)
