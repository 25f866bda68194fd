"""HIRL in a LightningModule: a callback builds the trees, from features that it collects during training."""

# ruff: noqa: ARG002 - Lightning hands its hooks more than they need

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hirl import ranks
from hirl.hierarchy.paths import SemanticPaths
from hirl.methods.parts.sync_batch_norm import synchronise_batch_norm
from hirl.seeds import Stream, mix_seed

# Lightning exists under two names, with the same code in both: a trainer of one takes a callback of the other.
if TYPE_CHECKING or find_spec("pytorch_lightning") is not None:
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl

BANK = "hirl_bank"  # in checkpoints


class SemanticPathsCallback(pl.Callback):
    """Refreshes the tree of a module's `SemanticPaths` after every epoch from `start_epoch` − 1 on.

        class Model(LightningModule):
            def __init__(self):
                self.paths = hirl.SemanticPaths(dim=128, levels=(3000, 300, 30))

            def training_step(self, batch, batch_index):
                ...
                return loss_image + self.paths(z0, index)

        Trainer(callbacks=[SemanticPathsCallback(start_epoch=10)])

    The bank holds z⁰ of every image as `self.paths(z0, index)` was called with it in the epoch; images that were left
    out of it, such as those of an incomplete last batch, have no leaf in the next one. Trees and the bank of an
    unfinished epoch are in Lightning's checkpoints. Several processes build the tree that one would build: each
    keeps its own rows, and batch norm of the heads takes its statistics from all of them.

    Args:
        start_epoch: T₁, the first epoch with a tree, counted from 0; by default a tenth of `max_epochs`, at least 1.
        images: The size of the data set; by default that of the training loader's.
        seed: The seed of K-means and of the negative paths.
    """

    def __init__(self, *, start_epoch: int | None = None, images: int | None = None, seed: int = 0) -> None:
        if start_epoch is not None and start_epoch < 1:
            raise ValueError(f"start_epoch is {start_epoch}, but must be at least 1: a tree needs an epoch's features")
        self.start_epoch = start_epoch
        self.images = images
        self.seed = seed
        self._paths: SemanticPaths | None = None
        self._kept: list[tuple[Tensor, Tensor]] = []  # index (B,), z⁰ (B, D)
        self._draw = 0  # seed of this batch's negative paths
        self._hooks: list[Any] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        found = [module for module in pl_module.modules() if isinstance(module, SemanticPaths)]
        if len(found) != 1:
            raise ValueError(
                f"{type(pl_module).__name__} has {len(found)} SemanticPaths, but must have one: set self.paths = "
                "hirl.SemanticPaths(dim, levels) in its constructor"
            )
        self._paths = found[0]
        if self.start_epoch is None:
            self.start_epoch = max(1, round((trainer.max_epochs or 0) / 10))
        if stage == "fit":
            self._remove_hooks()  # of a fit that was interrupted, and what it collected
            self._kept = []
            synchronise_batch_norm(self._paths)
            self._hooks = [
                self._paths.register_forward_pre_hook(self._with_generator, with_kwargs=True),
                self._paths.register_forward_hook(self._keep, with_kwargs=True),
            ]

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._remove_hooks()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._draw = mix_seed(self.seed, Stream.NEGATIVES, trainer.current_epoch, batch_idx)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Before Lightning's own checkpoint callbacks, which come last: the tree is in the epoch's checkpoint."""
        assert self._paths is not None
        assert self.start_epoch is not None
        kept, self._kept = self._kept, []
        if trainer.current_epoch + 1 < self.start_epoch:
            return
        if not any(ranks.world().gather_objects(bool(kept))):
            raise ValueError("the bank is empty: training_step must call self.paths(z0, index)")
        device = next(self._paths.parameters()).device
        none = (torch.empty(0, dtype=torch.int64), torch.empty(0, self._paths.dim, device=device))
        index, rows = (torch.cat(parts) for parts in zip(none, *kept, strict=True))
        seed = mix_seed(self.seed, Stream.KMEANS, trainer.current_epoch)
        images = _size_of(trainer) if self.images is None else self.images
        self._paths.refresh(rows, index=index, images=images, seed=seed, group=ranks.world().group)

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Called by all processes, of which the first writes the file."""
        every = ranks.world().gather_objects([(index, rows.cpu()) for index, rows in self._kept])
        checkpoint[BANK] = [pair for kept in every for pair in kept]

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """The first process takes all rows: the tree does not depend on who holds which."""
        self._kept = list(checkpoint.get(BANK, ())) if trainer.global_rank == 0 else []

    def _with_generator(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same negative paths in every process, and after a restart."""
        device = args[0].device if args else kwargs["z0"].device
        own = torch.Generator(device=device).manual_seed(self._draw)
        return args, {"generator": own} | kwargs

    def _keep(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _loss: Tensor) -> None:
        z0 = args[0] if args else kwargs["z0"]
        index = args[1] if len(args) > 1 else kwargs.get("index")
        if index is None:
            raise ValueError("the callback collects z0 by image: call self.paths(z0, index), not with a target")
        if module.training:
            rows = z0.detach().float()
            if self._kept and self._kept[0][1].device != rows.device:  # read from a checkpoint
                self._kept = [(known, kept.to(rows.device)) for known, kept in self._kept]
            self._kept.append((index.cpu(), rows))


def _size_of(trainer: pl.Trainer) -> int:
    loader = trainer.train_dataloader
    try:
        return len(loader.dataset)  # type: ignore[union-attr]
    except (AttributeError, TypeError) as error:
        raise ValueError("the training loader's data set has no length: give the callback its size, images") from error
