"""SemanticPaths: heads, tree, loss and state, as a training loop of one's own meets them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hirl import PrototypeTree, SemanticPaths, hierarchical_kmeans, spd_loss

MakeTree = Callable[..., PrototypeTree]
LEVELS = (12, 4, 2)


@pytest.fixture
def paths() -> SemanticPaths:
    torch.manual_seed(0)
    return SemanticPaths(dim=8, levels=LEVELS, negatives=None)


@pytest.fixture
def features(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(100, 8, generator=generator)


def test_before_the_first_tree_the_loss_is_zero_with_zero_gradients(paths: SemanticPaths) -> None:
    buffers = {name: buffer.clone() for name, buffer in paths.named_buffers()}
    loss = paths(torch.randn(5, 8), torch.arange(5))
    assert loss.shape == ()
    assert float(loss) == 0
    loss.backward()
    assert all(p.grad is not None and not p.grad.any() for p in paths.parameters())
    assert all(torch.equal(buffers[name], buffer) for name, buffer in paths.named_buffers())
    assert float(paths(torch.randn(5, 8), target=torch.randn(5, 8))) == 0


def test_the_loss_is_that_of_the_stored_leaves(paths: SemanticPaths, features: torch.Tensor) -> None:
    tree = paths.refresh(features)
    assert paths.tree is tree
    index = torch.tensor([3, 99, 50, 3])
    z0 = features[index].requires_grad_()
    loss = paths.eval()(z0, index)
    expected = spd_loss(paths.encode(z0), tree, tree.leaves[index], negatives=None)
    assert float(loss) == pytest.approx(float(expected))
    loss.backward()
    assert z0.grad is not None
    assert bool(z0.grad.any())
    assert all(p.grad is not None and bool(p.grad.any()) for p in paths.parameters())


def test_an_image_without_features_is_not_in_the_tree_and_not_in_the_loss(
    paths: SemanticPaths, features: torch.Tensor
) -> None:
    rows = torch.tensor([row for row in range(100) if row not in (3, 99)])
    tree = paths.refresh(features[rows], index=rows, images=100)
    assert (tree.leaves == -1).nonzero().flatten().tolist() == [3, 99]
    assert tree.count == 98
    index = torch.tensor([3, 7, 50, 99])
    z0 = torch.randn(4, 8)
    loss = paths.eval()(z0, index)
    expected = spd_loss(paths.encode(z0)[1:3], tree, tree.leaves[index[1:3]], negatives=None)
    assert float(loss) == pytest.approx(float(expected))
    assert float(paths(z0[:1], index[:1])) == 0
    copied = SemanticPaths(dim=8, levels=LEVELS)
    copied.load_state_dict(paths.state_dict())
    assert copied.tree is not None
    assert torch.equal(copied.tree.leaves, tree.leaves)
    again = paths.reassign(features, index=torch.arange(100), images=100)
    assert torch.equal(again.leaves, tree.assign(features))
    for wrong in ({"images": 50, "index": rows}, {"images": 100}):
        with pytest.raises(ValueError, match=r"index reaches 98|images needs index"):
            paths.refresh(features[rows], **wrong)


def test_a_target_finds_the_leaf_and_takes_no_gradient(paths: SemanticPaths, features: torch.Tensor) -> None:
    tree = paths.refresh(features)
    z0, target = torch.randn(6, 8), torch.randn(6, 8, requires_grad=True)
    loss = paths.eval()(z0, target=target)
    expected = spd_loss(paths.encode(z0), tree, tree.assign(target), negatives=None)
    assert float(loss) == pytest.approx(float(expected))
    loss.backward()
    assert target.grad is None


def test_the_leaves_of_a_batch(paths: SemanticPaths, features: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="no tree yet"):
        paths.find_leaves(torch.arange(3))
    tree = paths.refresh(features)
    index = torch.tensor([3, 99, 50, 3])
    assert torch.equal(paths.find_leaves(index), tree.leaves[index])
    assert torch.equal(paths.find_leaves(target=features[index]), tree.leaves[index])  # K-means is spherical


def test_weight_and_generator(features: torch.Tensor) -> None:
    losses = {}
    for weight in (1.0, 0.5):
        torch.manual_seed(0)
        paths = SemanticPaths(8, LEVELS, negatives=2, weight=weight).eval()
        paths.refresh(features)
        losses[weight] = [
            float(paths(features[:9], torch.arange(9), generator=torch.Generator().manual_seed(seed)))
            for seed in (1, 1, 2)
        ]
    assert losses[1.0][0] == losses[1.0][1] != losses[1.0][2]
    assert losses[0.5] == pytest.approx([loss / 2 for loss in losses[1.0]])


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_heads_are_as_the_paper_has_them(layers: int) -> None:
    paths = SemanticPaths(16, LEVELS, head_layers=layers)
    assert len(paths.heads) == 3
    for head in paths.heads:
        modules = list(head.children())
        assert [type(module) for module in modules] == [nn.Linear, nn.BatchNorm1d, nn.ReLU] * (layers - 1) + [nn.Linear]
        assert all(m.in_features == m.out_features == 16 for m in modules if isinstance(m, nn.Linear))
    z0 = torch.randn(7, 16)
    z = paths.eval().encode(z0)
    assert z.shape == (7, 3, 16)
    torch.testing.assert_close(z[:, 1], paths.heads[1](z0))


def test_refresh_starts_from_the_last_tree(paths: SemanticPaths, features: torch.Tensor) -> None:
    first = paths.refresh(features, seed=1)
    moved = features + 0.05 * torch.randn(100, 8)
    second = paths.refresh(moved, seed=2)
    expected = hierarchical_kmeans(moved, LEVELS, init=first)
    assert torch.equal(second.leaves, expected.leaves)
    assert torch.equal(second.prototypes[0], expected.prototypes[0])


def test_rows_in_any_order(paths: SemanticPaths, features: torch.Tensor) -> None:
    order = torch.randperm(100)
    tree = paths.refresh(features[order], index=order)
    assert torch.equal(tree.leaves, tree.assign(features))


def test_the_state_dict_carries_the_tree(paths: SemanticPaths, features: torch.Tensor, tmp_path: Path) -> None:
    fresh = SemanticPaths(8, LEVELS, negatives=None)
    fresh.load_state_dict(paths.state_dict())  # without a tree
    assert fresh.get_extra_state() == {}
    tree = paths.refresh(features)
    torch.save(paths.state_dict(), tmp_path / "paths.pt")
    fresh.load_state_dict(torch.load(tmp_path / "paths.pt", weights_only=True))
    loaded = fresh.get_extra_state()
    assert loaded.keys() == tree.tensors().keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tree.tensors().items())
    z0, index = torch.randn(4, 8), torch.arange(4)
    assert float(fresh.eval()(z0, index)) == float(paths.eval()(z0, index))
    assert copy.deepcopy(paths).tree is not None


def test_the_tree_is_neither_buffer_nor_parameter(paths: SemanticPaths, features: torch.Tensor) -> None:
    """DDP broadcasts buffers at every step; a tree of 336 MB must not be among them."""
    paths.refresh(features)
    sizes = {buffer.numel() for buffer in paths.buffers()} | {p.numel() for p in paths.parameters()}
    assert sizes == {8, 64, 1}  # batch norm's, linear layers', batch counts


def test_bfloat16_autocast(paths: SemanticPaths, features: torch.Tensor) -> None:
    paths.refresh(features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = paths(features[:10], torch.arange(10))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in paths.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_z0_of_another_float_type_than_the_heads(
    paths: SemanticPaths, features: torch.Tensor, dtype: torch.dtype
) -> None:
    paths.refresh(features)
    z0, index = features[:10].to(dtype).requires_grad_(), torch.arange(10)
    loss = paths(z0, index)
    assert float(loss) == pytest.approx(float(paths(z0.float(), index)), rel=1e-6)
    loss.backward()
    assert z0.grad is not None
    assert bool(z0.grad.isfinite().all())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, f: p(f[:4]), "either the images' index.*or target"),
        (lambda p, f: p(f[:4], torch.arange(4), target=f[:4]), "either the images' index.*or target"),
        (lambda p, f: p(f[:4], torch.tensor([0, 1, 2, 100])), r"0 … 99.*100"),
        (lambda p, f: p(f[:4], torch.tensor([0, 1, 2, -1])), r"0 … 99.*-1"),
        (lambda p, f: p(f[:4], torch.arange(4.0)), "int64.*float32"),
        (lambda p, f: p(f[:4], torch.arange(3)), "^index must have a number for each of the 4 images of z0, not 3$"),
        (
            lambda p, f: p(f[:3], [0, 1, 2]),
            r"^index must be an int64 tensor of shape \(B,\), not a list: torch.as_tensor",
        ),
        (lambda p, f: p(f[:3], np.arange(3)), r"^index must be an int64 tensor of shape \(B,\), not a numpy array: "),
        (lambda p, f: p(f[:3].long(), torch.arange(3)), r"^z0 must be a float tensor.* not torch.int64 \(3, 8\)"),
        (lambda p, f: p(f[:3].numpy(), torch.arange(3)), "^z0 must be a float tensor.* not a numpy array"),
        (lambda p, _: p.find_leaves([0, 1, 2]), "int64 tensor.*not a list"),
        (lambda p, f: p.refresh(f, index=list(range(100))), r"int64 tensor of shape \(N,\), not a list"),
        (lambda p, f: p.refresh(torch.cat((f, f[:, :1]), 1)), "^features have 9 columns, but dim.* is 8$"),
        (lambda p, f: p(f[:4, :5], torch.arange(4)), r"\(B, 8\), not \(4, 5\)"),
        (lambda p, f: p.encode(f[0]), r"\(B, 8\), not \(8,\)"),
        (lambda p, f: p.refresh(f[:5]), "12 clusters of only 5 rows"),
        (lambda p, f: p.refresh(f, index=torch.arange(99)), r"\(100,\).*\(99,\)"),
        (lambda p, f: p.refresh(f, index=torch.arange(100) - 1), "-1, but must be 0 or more"),
        (lambda p, f: p.refresh(f, index=torch.arange(100) * 2), "leaves out image 1 of 199"),
        (lambda p, f: setattr(p, "tree", hierarchical_kmeans(f, (9, 3))), r"\(9, 3\).*not \(12, 4, 2\)"),
        (lambda p, f: p(f[:1], torch.arange(1)), "at least 2 images in training, not 1"),
        (lambda p, f: p(f[:4], target=f[:3]), "a row for each of the 4 images of z0, not 3"),
        (lambda p, f: p(f[:4], target=f[:4, :5]), r"target must be of shape \(B, 8\)"),
        (lambda _, __: SemanticPaths(8, LEVELS, negatives=0), "negatives is 0, but must be at least 1"),
        (lambda _, __: SemanticPaths(8, LEVELS, sampling="row"), "batch, image"),  # type: ignore[arg-type]
        (
            lambda _, __: SemanticPaths(8, LEVELS, weight=float("nan")),
            "weight is nan, but must be a number",
        ),
        (lambda _, __: SemanticPaths(0, LEVELS), "at least 1"),
        (lambda _, __: SemanticPaths(8, (4, 12)), "must decrease"),
    ],
)
def test_bad_input_is_named(
    paths: SemanticPaths, features: torch.Tensor, call: Callable[..., object], message: str
) -> None:
    paths.refresh(features)
    before = paths.tree
    with pytest.raises(ValueError, match=message):
        call(paths, features)
    assert paths.tree is before
