"""HIRL with lightly: SimCLR out of lightly's parts, on a folder of images.

    python examples/lightly_simclr.py photos/ --epochs 100

Besides lightly's own lines, three are needed, numbered below. lightly's batches name files; `rows` gives their index.
"""

from __future__ import annotations

import argparse
from typing import Any

import pytorch_lightning as pl
import timm
import torch
from lightly.data import LightlyDataset
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms.simclr_transform import SimCLRTransform
from torch import Tensor
from torch.utils.data import DataLoader

import hirl
from hirl.integrations.lightning import SemanticPathsCallback


class SimCLR(pl.LightningModule):
    def __init__(self, files: list[str], backbone: str) -> None:
        super().__init__()
        self.rows = {name: row for row, name in enumerate(files)}
        self.backbone = timm.create_model(backbone, num_classes=0)
        width = self.backbone.num_features
        self.head = SimCLRProjectionHead(width, width, 128)
        self.criterion = NTXentLoss()
        self.paths = hirl.SemanticPaths(dim=128, levels=hirl.suggest_levels(len(files)))  # 1: heads and tree

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        (first, second), _, names = batch
        index = torch.tensor([self.rows[name] for name in names])
        z0, other = (self.head(self.backbone(view)) for view in (first, second))
        loss = self.criterion(z0, other) + self.paths(z0, index)  # 2: the loss, 0 before the first tree
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(folder: str, epochs: int, size: int, batch: int, backbone: str) -> None:
    pl.seed_everything(0)
    data = LightlyDataset(folder, transform=SimCLRTransform(input_size=size))
    model = SimCLR(data.get_filenames(), backbone)
    trees = SemanticPathsCallback()  # 3: a new tree after every epoch, from a tenth of the epochs on
    trainer = pl.Trainer(max_epochs=epochs, callbacks=[trees], logger=False, enable_progress_bar=False)
    trainer.fit(model, DataLoader(data, batch_size=min(batch, len(data)), shuffle=True, drop_last=True))
    print(f"loss {float(trainer.logged_metrics['loss']):.3f}; {model.paths.tree}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--backbone", default="resnet18", help="timm name")
    options = parser.parse_args()
    main(options.folder, options.epochs, options.size, options.batch, options.backbone)
