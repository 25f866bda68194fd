"""The last blocks of a network, to train them while the rest stays frozen. timm defines the blocks."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Blocks: TypeAlias = int | Literal["all"]
_UNKNOWN = "unknown"  # the name of no parameter


def block_numbers(network: nn.Module) -> dict[str, int]:
    """By name of a parameter, the number of its block: 0 for the stem. What follows the last block is part of it."""
    from timm.models._manipulate import group_with_matcher

    if not hasattr(network, "group_matcher"):
        raise ValueError(f"{type(network).__name__} does not say what its blocks are: use unfreeze 0 or all")
    names = [name for name, _ in network.named_parameters()]
    matcher = network.group_matcher(coarse=False)  # type: ignore[operator]
    numbers: dict[str, int] = group_with_matcher(((name, None) for name in (*names, _UNKNOWN)), matcher, reverse=True)
    # timm counts layers that it has no pattern for, such as a norm before the classifier, as one more block.
    last = max(0, numbers.pop(_UNKNOWN) - 1)
    return {name: min(number, last) for name, number in numbers.items()}


def check_blocks(network: nn.Module, unfreeze: Blocks, *, name: str) -> None:
    """Raise a ValueError unless the network has so many blocks."""
    if unfreeze == "all":
        return
    if unfreeze < 0:
        raise ValueError(f"unfreeze is {unfreeze}, but must be a number of blocks, 0 for none, or all")
    if unfreeze and unfreeze > (blocks := max(block_numbers(network).values())):
        raise ValueError(f"unfreeze is {unfreeze}, but must be at most the {blocks} blocks of {name}, or all")


def freeze_but_last(network: nn.Module, unfreeze: Blocks) -> dict[nn.Parameter, int]:
    """Freeze the parameters before the last blocks; those that train, with the number of blocks behind their own."""
    numbers = dict.fromkeys((name for name, _ in network.named_parameters()), 0)
    if unfreeze != "all" or hasattr(network, "group_matcher"):
        numbers = block_numbers(network)
    last = max(numbers.values())
    first = 0 if unfreeze == "all" else last + 1 - unfreeze
    trained = {}
    for name, weight in network.named_parameters():
        weight.requires_grad_(weight.requires_grad and numbers[name] >= first)
        if weight.requires_grad:
            trained[weight] = last - numbers[name]
    return trained


def fixed_layers(network: nn.Module) -> list[nn.Module]:
    """Layers for eval mode: all batch norms, whose statistics must not move, and what has no parameter that trains."""
    return [
        layer
        for layer in network.modules()
        if isinstance(layer, _BatchNorm)
        or (any(True for _ in layer.parameters()) and not any(weight.requires_grad for weight in layer.parameters()))
    ]
