"""A LightningModule with HIRL; as a script, one process of its training."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import hirl
from hirl.integrations.lightning import SemanticPathsCallback

IMAGES, BATCH, WIDTH = 64, 16, 12
LEVELS = (8, 3)


class Rows(Dataset[tuple[Tensor, int]]):
    """Noise around one of eight points."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        centres = torch.randn(8, WIDTH, generator=generator)
        self.rows = centres.repeat(IMAGES // 8, 1) + 0.3 * torch.randn(IMAGES, WIDTH, generator=generator)

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.rows[index], index


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, 8))
        self.paths = hirl.SemanticPaths(dim=8, levels=LEVELS, negatives=4)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        rows, index = batch
        z0 = self.network(rows)
        loss_image = (1 - F.cosine_similarity(z0, self.network(rows.roll(1, dims=1)))).mean()
        return loss_image + self.paths(z0, index)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def train(folder: Path, *, processes: int, epochs: int, resume: Path | None = None, save_at: int = 0) -> Model:
    """All processes together see the same batches as one."""
    model, data = Model(), Rows()
    saving = [pl.callbacks.ModelCheckpoint(folder, "middle", every_n_train_steps=save_at)] if save_at else []
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        max_epochs=epochs,
        logger=False,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=save_at > 0,
        callbacks=[SemanticPathsCallback(start_epoch=1), *saving],
    )
    sampler: DistributedSampler[Any] = DistributedSampler(data, processes, trainer.global_rank, seed=1)
    loader = DataLoader(data, batch_size=BATCH // processes, sampler=sampler)
    trainer.fit(model, loader, ckpt_path=None if resume is None else str(resume), weights_only=resume is None)
    trainer.save_checkpoint(folder / "last.ckpt")
    return model


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    train(Path(sys.argv[1]), processes=int(sys.argv[2]), epochs=3)
