"""The joint objective (Eq. 4), L_img + weight · L_SPD: what one batch goes through in training.

1. The method turns the views of a batch into its own loss L_img and into z⁰ of each image.
2. Each image gets its leaf c₊¹, and with it its path through the tree. `assign="stored"`: the leaf that the last
   clustering stored under the image's index in the data set. `assign="step"`: the leaf that the tree finds for z⁰ of
   the image's second view, or of the only one. `SemanticPaths.find_leaves` in hirl/hierarchy/paths.py does both.
3. The heads h_l turn z⁰ into z¹…zᴸ, and L_SPD aligns them with the path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from hirl.hierarchy.paths import SemanticPaths
from hirl.methods.base import Method
from hirl.ranks import Ranks
from hirl.train.diagnostics import gradient_figures, view_agreement


class Losses(NamedTuple):
    """The result of one forward pass. A tuple, because Fabric and DDP must find the tensors in it.

    As the result of a step the losses are means over all parts and processes; z⁰ is that of this process's last part.
    """

    total: Tensor  # Eq. 4, with graph; everything below is detached
    image: Tensor  # L_img
    spd: Tensor  # L_SPD; 0 before the first tree and for a baseline
    target_z0: Tensor  # (B, D); the method's, or z⁰ of the first view if it gives none
    z0: Tensor  # (B, D)
    logs: dict[str, Tensor]  # of the method
    diagnostics: dict[str, Tensor]  # empty unless they are asked for


def mean_losses(parts: Sequence[Losses], ranks: Ranks) -> Losses:
    """Return the mean over the parts of a batch and over processes, whose shares are equal."""
    named = [part.logs | part.diagnostics for part in parts]
    values = [(part.total, part.image, part.spd, *more.values()) for part, more in zip(parts, named, strict=True)]
    rows = torch.stack([torch.stack([value.float() for value in row]) for row in values])
    total, image, spd, *others = ranks.mean(rows.mean(0))
    means = dict(zip(named[0], others, strict=True))
    logs, diagnostics = ({name: means[name] for name in part} for part in (parts[0].logs, parts[0].diagnostics))
    return parts[-1]._replace(total=total, image=image, spd=spd, logs=logs, diagnostics=diagnostics)


@contextmanager
def first_output(module: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list that gets what the module returns when it is first called in this context."""
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        if not outputs:
            outputs.append(output)

    hook = module.register_forward_hook(keep)
    try:
        yield outputs
    finally:
        hook.remove()


@contextmanager
def in_eval_mode(network: nn.Module) -> Iterator[None]:
    """Put a network into eval mode, and each of its layers back into its own mode afterwards."""
    training = [layer for layer in network.modules() if layer.training]
    network.eval()
    try:
        yield
    finally:
        for layer in training:
            layer.training = True


class Joint(nn.Module):
    """L_img + weight · L_SPD of a method and its semantic paths; without `paths` the method alone, the baseline."""

    def __init__(
        self, method: Method, paths: SemanticPaths | None, *, assign: Literal["stored", "step"] = "stored"
    ) -> None:
        super().__init__()
        self.method = method
        self.paths = paths
        self.assign = assign

    def forward(
        self,
        views: list[Tensor],
        masks: list[Tensor | None],
        index: Tensor,
        step: int,
        negatives_seed: int,
        *,
        diagnose: bool = False,
    ) -> Losses:
        """Compute the losses of a batch: its views, each (B, C, s, s), and its images' positions in the data set (B,).

        The negative paths depend on `negatives_seed` alone, so that all processes draw the same ones. `diagnose`: also
        compute the diagnostics, if there is a tree.
        """
        with first_output(self.method.trained_features) as features:
            output = self.method(views, masks, step)
        target = (output.z0 if output.target_z0 is None else output.target_z0).detach()  # (B, D)
        z0 = output.z0
        if self.paths is not None and self.paths.head_layers == 0:  # without heads: of the encoder's features
            z0 = features[0][: len(index)]  # a method encodes its first view first, alone or with others behind it
            diagnose = diagnose and self.paths.tree is not None
            if diagnose or self.assign == "step":
                # In eval mode, as the features of the tree: a further view must not change running statistics.
                with torch.no_grad(), in_eval_mode(self.method.encoder):
                    target = self.method.encoder(views[min(1, len(views) - 1)])
        spd = weighted = output.loss.new_zeros(())
        if self.paths is not None:
            generator = torch.Generator(device=z0.device).manual_seed(negatives_seed)
            leaf_of = {"index": index} if self.assign == "stored" else {"target": target}
            spd = self.paths.spd(z0, **leaf_of, generator=generator)
            weighted = self.paths.weight * spd
        diagnostics: dict[str, Tensor] = {}
        if diagnose and self.paths is not None and self.paths.tree is not None:
            diagnostics = gradient_figures(output.loss, weighted, z0) if z0 is output.z0 else {}
            if output.target_z0 is not None:
                diagnostics |= view_agreement(self.paths.tree, z0, target)
        return Losses(
            total=output.loss + weighted,
            image=output.loss.detach(),
            spd=spd.detach(),
            target_z0=target,
            z0=output.z0.detach(),
            logs={name: value.detach() for name, value in output.logs.items()},
            diagnostics=diagnostics,
        )
