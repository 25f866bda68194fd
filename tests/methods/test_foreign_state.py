"""A checkpoint of a method's authors gives all its networks: encoders, heads, queue and centre, or none of them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hirl.methods import DINO, MoCoV2, SimSiam
from hirl.methods.base import Method, Plan
from hirl.methods.foreign_state import load_foreign_state

PLAN = Plan(2, 2, 8, 32, 3)
NARROW: dict[str, Any] = {"channels": [8, 8, 8, 8]}
TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 1, "num_heads": 1}


def built(method: Method, seed: int) -> Any:
    torch.manual_seed(seed)
    method.build(PLAN)
    return method.eval()


def moco(seed: int, queue_length: int = 16) -> Any:
    small: dict[str, Any] = {"dim": 8, "queue_length": queue_length, "bn_splits": 1}
    return built(MoCoV2(backbone="resnet18", backbone_args=NARROW, **small), seed)


def dino(seed: int) -> Any:
    return built(DINO(backbone="vit_tiny_patch16_224", backbone_args=TINY, dim=8, hidden=16, prototypes=12), seed)


def renamed(network: Any, prefix: str, *changes: tuple[str, str]) -> dict[str, Tensor]:
    state = {}
    for name, tensor in network.state_dict().items():
        for old, new in changes:
            name = name.replace(old, new)
        state[f"{prefix}{name}"] = tensor
    return state


def test_moco_v2(tmp_path: Path) -> None:
    theirs, ours = moco(1), moco(2)
    names = (("head.layers.", "fc."), ("backbone.", ""))
    state = renamed(theirs.query, "module.encoder_q.", *names) | renamed(theirs.key, "module.encoder_k.", *names)
    # Theirs is a ring: with the pointer at 6, row 6 is the oldest key, which here comes first.
    state |= {"module.queue": theirs.queue.roll(6, 0).T, "module.queue_ptr": torch.tensor([6])}
    torch.save({"state_dict": state, "epoch": 200}, tmp_path / "moco.pth")
    load_foreign_state(ours, tmp_path / "moco.pth")
    assert_same(theirs, ours)
    shorter = moco(2, queue_length=8)
    load_foreign_state(shorter, tmp_path / "moco.pth")
    torch.testing.assert_close(shorter.queue, theirs.queue[-8:])
    del state["module.encoder_k.fc.2.bias"]
    torch.save({"state_dict": state}, tmp_path / "part.pth")
    with pytest.raises(ValueError, match=r"do not fit MoCoV2: 1 missing \(key.head.layers.2.bias\)"):
        load_foreign_state(ours, tmp_path / "part.pth")


def test_queries_alone_are_the_keys_as_well(tmp_path: Path) -> None:
    theirs, ours = moco(1), moco(2)
    before = ours.queue.clone()
    state = renamed(theirs.query, "module.encoder_q.", ("head.layers.", "fc."), ("backbone.", ""))
    torch.save({"state_dict": state}, tmp_path / "queries.pth")
    load_foreign_state(ours, tmp_path / "queries.pth")
    for network in (ours.query, ours.key):
        for name, tensor in theirs.query.state_dict().items():
            torch.testing.assert_close(network.state_dict()[name], tensor, msg=name)
    assert torch.equal(ours.queue, before)


def test_dino(tmp_path: Path) -> None:
    theirs, ours = dino(1), dino(2)
    theirs.centre.normal_()
    change = ("last_layer.weight", "last_layer.weight_v")
    student, teacher = renamed(theirs.student, "module.", change), renamed(theirs.teacher, "", change)
    gains = {"head.last_layer.weight_g": torch.ones(12, 1)}
    content = {"student": student | {f"module.{name}": gain for name, gain in gains.items()}, "args": Namespace(lr=1)}
    content |= {"teacher": teacher | gains, "dino_loss": {"center": theirs.centre[None]}}
    torch.save(content, tmp_path / "dino.pth")
    load_foreign_state(ours, tmp_path / "dino.pth")
    assert_same(theirs, ours)
    torch.save(content | {"teacher": teacher | {name: 2 * gain for name, gain in gains.items()}}, tmp_path / "gain.pth")
    with pytest.raises(ValueError, match="prototypes have unit length here"):
        load_foreign_state(dino(3), tmp_path / "gain.pth")
    with pytest.raises(ValueError, match="checkpoints of SimSiam are not known with their heads"):
        load_foreign_state(SimSiam(), tmp_path / "dino.pth")
    with pytest.raises(ValueError, match="has no networks with heads in 'state_dict', as a checkpoint of MoCoV2 has"):
        load_foreign_state(moco(3), tmp_path / "dino.pth")


def assert_same(theirs: Any, ours: Any) -> None:
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours.embed(images), theirs.embed(images))
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, msg=name)
