"""Batch norms folded into the convolutions before them: the same function, in four fifths of the time on a CPU.

In eval mode a batch norm scales and shifts every channel by constants, which may as well be part of the weights and the
bias of the convolution that computes the channel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from hirl.encoders.adapter import AdaptedNetwork

# Networks whose code is known to pass through their layers and nothing else. One of the user's own may keep what a
# layer gives, or use its weights elsewhere.
KNOWN_PACKAGES = ("timm", "torchvision")


def fold_batch_norms(network: nn.Module) -> nn.Module:
    """A copy of the network for passes in eval mode, or itself if it has nothing to fold; single precision rounds anew.

    A batch norm stays where the output of its convolution has another use, or where tracing the network fails.
    """
    inner, prefix = (network.frozen, "frozen.") if isinstance(network, AdaptedNetwork) else (network, "")
    if type(inner).__module__.partition(".")[0] not in KNOWN_PACKAGES:
        return network
    modules = list(network.modules())
    hooks = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    if hooks or not any(isinstance(module, nn.BatchNorm2d) for module in modules):
        return network
    pairs = list(_pairs(deepcopy(inner).eval(), prefix))  # tracing may leave something in the copy
    if not pairs:
        return network
    folded = deepcopy(network).eval()
    for convolution, norm in pairs:
        before, behind = folded.get_submodule(convolution), folded.get_submodule(norm)
        _replace(folded, convolution, fuse_conv_bn_eval(before, behind))  # type: ignore[type-var, arg-type]
        _replace(folded, norm, _without_norm(behind))
    return folded


class _Tracer(fx.Tracer):
    """Follows the calls of a network down to its convolutions and batch norms, of which timm has classes of its own."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = isinstance(m, nn.Conv2d | nn.BatchNorm2d)
        return own or super().is_leaf_module(m, module_qualified_name)


def _pairs(network: nn.Module, prefix: str) -> Iterator[tuple[str, str]]:
    """The names of every convolution and batch norm such that nothing but the norm uses the convolution's output."""
    if not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        return
    try:
        graph = _Tracer().trace(network)
    except Exception:  # its code takes a way that depends on its input, which may end in any error
        for name, child in network.named_children():
            yield from _pairs(child, f"{prefix}{name}.")
        return
    calls = [node for node in graph.nodes if node.op == "call_module"]
    often = Counter(node.target for node in calls)
    # Weights that are used beside the call of their layer.
    often.update(str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr")
    for norm in calls:
        before = norm.args[0] if norm.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        modules = network.get_submodule(str(before.target)), network.get_submodule(str(norm.target))
        if often[norm.target] == often[before.target] == 1 and _can_fold(*modules):
            yield f"{prefix}{before.target}", f"{prefix}{norm.target}"


def _can_fold(convolution: nn.Module, norm: nn.Module) -> bool:
    """Whether both do what their class does and nothing else, in single precision, and the norm has constants."""
    from timm.layers.conv2d_same import Conv2dSame  # timm takes seconds, which `import hirl` need not
    from timm.layers.norm_act import BatchNormAct2d

    known = type(convolution) in (nn.Conv2d, Conv2dSame) and type(norm) in (nn.BatchNorm2d, BatchNormAct2d)
    if not known or norm.running_mean is None:
        return False
    return all(weight.dtype == torch.float32 for module in (convolution, norm) for weight in module.parameters())


def _without_norm(norm: Any) -> nn.Module:
    """What is left of a batch norm: nothing, or the activation that timm's class has in it."""
    return nn.Identity() if type(norm) is nn.BatchNorm2d else nn.Sequential(norm.drop, norm.act)


def _replace(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(network.get_submodule(parent), own, module)
