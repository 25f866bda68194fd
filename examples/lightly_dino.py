"""HIRL with lightly: DINO out of lightly's parts, on a folder of images.

    python examples/lightly_dino.py photos/ --epochs 100

z⁰ is the 256-dimensional output of the head's layers, before its prototypes. The student learns from the tree.
"""

from __future__ import annotations

import argparse
from typing import Any

import pytorch_lightning as pl
import timm
import torch
import torch.nn.functional as F
from lightly.data import LightlyDataset
from lightly.loss import DINOLoss
from lightly.models.modules import DINOProjectionHead
from lightly.models.utils import update_momentum
from lightly.transforms.dino_transform import DINOTransform
from lightly.utils.scheduler import cosine_schedule
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hirl
from hirl.integrations.lightning import SemanticPathsCallback


class Network(nn.Module):
    """A backbone and lightly's head: images to z⁰ and to scores of DINO's prototypes."""

    def __init__(self, backbone: str, prototypes: int, *, student: bool) -> None:
        super().__init__()
        self.backbone = timm.create_model(backbone, num_classes=0)
        width = self.backbone.num_features
        self.head = DINOProjectionHead(width, 2048, 256, prototypes, freeze_last_layer=1 if student else -1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        z0 = self.head.layers(self.backbone(images))
        return z0, self.head.last_layer(F.normalize(z0, dim=-1))


class DINO(pl.LightningModule):
    def __init__(self, files: list[str], backbone: str, prototypes: int) -> None:
        super().__init__()
        self.rows = {name: row for row, name in enumerate(files)}
        self.student = Network(backbone, prototypes, student=True)
        self.teacher = Network(backbone, prototypes, student=False).requires_grad_(False)
        self.teacher.load_state_dict(self.student.state_dict())
        self.criterion = DINOLoss(output_dim=prototypes, warmup_teacher_temp_epochs=5)
        self.paths = hirl.SemanticPaths(dim=256, levels=hirl.suggest_levels(len(files)))  # 1: heads and tree

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        momentum = cosine_schedule(self.current_epoch, self.trainer.max_epochs or 1, 0.996, 1)
        update_momentum(self.student, self.teacher, m=momentum)
        views, _, names = batch
        index = torch.tensor([self.rows[name] for name in names])
        teacher = [self.teacher(view)[1] for view in views[:2]]
        z0, first = self.student(views[0])
        student = [first, *(self.student(view)[1] for view in views[1:])]
        loss_image = self.criterion(teacher, student, epoch=self.current_epoch)
        loss = loss_image + self.paths(z0, index)  # 2: the loss, 0 before the first tree
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def on_after_backward(self) -> None:
        self.student.head.cancel_last_layer_gradients(current_epoch=self.current_epoch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW([weight for weight in self.parameters() if weight.requires_grad], lr=1e-3)


def main(folder: str, epochs: int, size: int, batch: int, backbone: str, prototypes: int) -> None:
    pl.seed_everything(0)
    views = DINOTransform(global_crop_size=size, local_crop_size=max(16, size * 3 // 7), n_local_views=2)
    data = LightlyDataset(folder, transform=views)
    model = DINO(data.get_filenames(), backbone, prototypes)
    trees = SemanticPathsCallback()  # 3: a new tree after every epoch, from a tenth of the epochs on
    trainer = pl.Trainer(max_epochs=epochs, callbacks=[trees], logger=False, enable_progress_bar=False)
    trainer.fit(model, DataLoader(data, batch_size=min(batch, len(data)), shuffle=True, drop_last=True))
    print(f"loss {float(trainer.logged_metrics['loss']):.3f}; {model.paths.tree}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--backbone", default="resnet18", help="timm name")
    parser.add_argument("--prototypes", type=int, default=2048)
    options = parser.parse_args()
    main(options.folder, options.epochs, options.size, options.batch, options.backbone, options.prototypes)
