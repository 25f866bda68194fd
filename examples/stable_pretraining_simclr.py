"""HIRL with stable-pretraining: SimCLR out of its parts, on a folder of images.

    python examples/stable_pretraining_simclr.py photos/ --epochs 100

Besides stable-pretraining's own lines, three are needed, numbered below.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning
import stable_pretraining as spt
from PIL import Image
from stable_pretraining.data import transforms
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hirl
from hirl.integrations.lightning import SemanticPathsCallback


class Photos(spt.data.Dataset):  # type: ignore[misc]
    """The images of a folder, each with its index."""

    def __init__(self, folder: str, transform: Any) -> None:
        super().__init__(transform)
        self.files = sorted(file for file in Path(folder).rglob("*") if file.suffix.lower() in (".jpg", ".png"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.process_sample({"image": Image.open(self.files[index]).convert("RGB"), "sample_idx": index})


def forward(module: Any, batch: dict[str, Any], stage: str) -> dict[str, Tensor]:  # noqa: ARG001
    first, second = batch["views"]
    z0, other = (module.projector(module.backbone(view["image"])) for view in (first, second))
    loss = module.criterion(z0, other) + module.paths(z0, first["sample_idx"])  # 2: the loss, 0 before the first tree
    module.log("loss", loss, on_epoch=True, on_step=False)
    return {"loss": loss}


def main(folder: str, epochs: int, size: int, batch: int, backbone: str) -> None:
    lightning.seed_everything(0)
    view = transforms.Compose(
        transforms.RandomResizedCrop((size, size)),
        transforms.RandomHorizontalFlip(p=0.5),
        transforms.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, p=0.8),
        transforms.ToImage(**spt.data.static.ImageNet),
    )
    photos = Photos(folder, transforms.MultiViewTransform([view, view]))
    encoder = spt.backbone.from_timm(backbone, num_classes=0)
    model = spt.Module(
        forward=forward,
        backbone=encoder,
        projector=nn.Sequential(nn.Linear(encoder.num_features, 512), nn.ReLU(), nn.Linear(512, 128)),
        criterion=spt.losses.NTXEntLoss(temperature=0.5),
        paths=hirl.SemanticPaths(dim=128, levels=hirl.suggest_levels(len(photos))),  # 1: heads and tree
        optim={"optimizer": {"type": "AdamW", "lr": 1e-3}, "scheduler": "ConstantLR"},
    )
    trees = SemanticPathsCallback()  # 3: a new tree after every epoch, from a tenth of the epochs on
    trainer = lightning.Trainer(
        max_epochs=epochs, callbacks=[trees], logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(model, DataLoader(photos, batch_size=min(batch, len(photos)), shuffle=True, drop_last=True))
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
