"""Semantic path discrimination against a slow loop written from Eq. 2 and 3."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hirl import PrototypeTree, spd_loss
from hirl.hierarchy.spd import Sampling, node_loss

MakeTree = Callable[..., PrototypeTree]


def similarity(z: Tensor, path: list[Tensor]) -> float:
    """Eq. 2 for one image and one path."""
    product = 1.0
    for representation, prototype in zip(z, path, strict=True):
        cosine = float(representation @ prototype / representation.norm() / prototype.norm())
        product *= (1 + cosine) / 2
    return product


def path_of(tree: PrototypeTree, leaf: int) -> list[Tensor]:
    path = [tree.prototypes[0][leaf]]
    node = leaf
    for level, parents in enumerate(tree.parents):
        node = int(parents[node])
        path.append(tree.prototypes[level + 1][node])
    return path


def loss_from_the_equations(z: Tensor, tree: PrototypeTree, leaves: Tensor) -> float:
    """Eq. 3 with all M_1 − 1 negative paths."""
    total = 0.0
    for image, leaf in zip(z, leaves.tolist(), strict=True):
        total += math.log(similarity(image, path_of(tree, leaf)))
        others = [other for other in range(tree.levels[0]) if other != leaf]
        total += sum(math.log(1 - similarity(image, path_of(tree, other))) for other in others) / len(others)
    return -total / len(z)


def double(tree: PrototypeTree) -> PrototypeTree:
    return PrototypeTree(
        prototypes=tuple(torch.nn.functional.normalize(nodes.double(), dim=1) for nodes in tree.prototypes),
        parents=tree.parents,
        leaves=tree.leaves,
    )


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True),
    dim=st.integers(2, 9),
    batch=st.integers(1, 5),
    seed=st.integers(0, 1000),
    sampling=st.sampled_from(["batch", "image"]),
)
def test_all_negatives_equal_the_equations(
    sizes: list[int], dim: int, batch: int, seed: int, sampling: Sampling
) -> None:
    levels = tuple(sorted(sizes, reverse=True))
    if levels[0] == 1:
        return
    generator = torch.Generator().manual_seed(seed)
    tree = PrototypeTree(
        prototypes=tuple(
            torch.nn.functional.normalize(torch.randn(size, dim, dtype=torch.float64, generator=generator), dim=1)
            for size in levels
        ),
        parents=tuple(torch.randint(after, (size,), generator=generator) for size, after in itertools.pairwise(levels)),
        leaves=torch.zeros(3, dtype=torch.int64),
    )
    z = torch.randn(batch, len(levels), dim, dtype=torch.float64, generator=generator)
    leaves = torch.randint(levels[0], (batch,), generator=generator)
    ours = float(spd_loss(z, tree, leaves, negatives=None, sampling=sampling))
    assert ours == pytest.approx(loss_from_the_equations(z, tree, leaves), rel=1e-9)


@pytest.mark.parametrize("negatives", [19, 20, 10**6, None])
def test_more_negatives_than_there_are_means_all(random_tree: MakeTree, negatives: int | None) -> None:
    tree = double(random_tree((20, 5), 8))
    z = torch.randn(4, 2, 8, dtype=torch.float64)
    leaves = torch.tensor([0, 3, 3, 19])
    expected = loss_from_the_equations(z, tree, leaves)
    assert float(spd_loss(z, tree, leaves, negatives=negatives)) == pytest.approx(expected, rel=1e-9)


def test_one_leaf_has_no_negatives(random_tree: MakeTree) -> None:
    tree = random_tree((1,), 4)
    z = torch.randn(2, 1, 4)
    positive = sum(math.log(similarity(image, path_of(tree, 0))) for image in z) / 2
    assert float(spd_loss(z, tree, torch.tensor([0, 0]))) == pytest.approx(-positive, rel=1e-5)


@pytest.mark.parametrize("sampling", ["batch", "image"])
def test_gradcheck(random_tree: MakeTree, sampling: Sampling) -> None:
    tree = double(random_tree((9, 4, 2), 5))
    z = torch.randn(3, 3, 5, dtype=torch.float64, requires_grad=True)
    leaves = torch.tensor([0, 8, 8])

    def loss(z: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return spd_loss(z, tree, leaves, negatives=4, sampling=sampling, generator=generator)

    assert torch.autograd.gradcheck(loss, (z,))


def loss_and_gradient(z: Tensor, *args: object, **options: object) -> tuple[float, Tensor]:
    z = z.clone().requires_grad_()
    loss = spd_loss(z, *args, **options)  # type: ignore[arg-type]
    (gradient,) = torch.autograd.grad(loss, z)
    return float(loss.detach()), gradient


@pytest.mark.parametrize("negatives", [1, 2, 3])
def test_draws_for_a_batch_are_unbiased(random_tree: MakeTree, negatives: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over every permutation the draw could make, loss and gradient average to those of all negatives."""
    tree = double(random_tree((5, 3), 4))
    z = torch.randn(6, 2, 4, dtype=torch.float64)
    leaves = torch.tensor([0, 1, 2, 3, 4, 4])
    full_loss, full_gradient = loss_and_gradient(z, tree, leaves, negatives=None)
    draws = []
    for order in itertools.permutations(range(5)):
        monkeypatch.setattr(torch, "randperm", lambda *_, order=order, **__: torch.tensor(order))
        draws.append(loss_and_gradient(z, tree, leaves, negatives=negatives))
    assert sum(loss for loss, _ in draws) / len(draws) == pytest.approx(full_loss, rel=1e-9)
    torch.testing.assert_close(sum(gradient for _, gradient in draws) / len(draws), full_gradient)


@pytest.mark.parametrize("negatives", [1, 2, 3])
def test_draws_for_an_image_are_unbiased(
    random_tree: MakeTree, negatives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over every set of leaves the draw could make, loss and gradient average to those of all negatives."""
    tree = double(random_tree((5, 3), 4))
    z = torch.randn(6, 2, 4, dtype=torch.float64)
    leaves = torch.tensor([0, 1, 2, 3, 4, 4])
    full_loss, full_gradient = loss_and_gradient(z, tree, leaves, negatives=None)
    draws = []
    for chosen in itertools.combinations(range(4), negatives):
        keys = torch.tensor([1.0 if place in chosen else 0.0 for place in range(4)]).expand(6, 4)
        monkeypatch.setattr(torch, "rand", lambda *_, keys=keys, **__: keys)
        draws.append(loss_and_gradient(z, tree, leaves, negatives=negatives, sampling="image"))
    assert sum(loss for loss, _ in draws) / len(draws) == pytest.approx(full_loss, rel=1e-9)
    torch.testing.assert_close(sum(gradient for _, gradient in draws) / len(draws), full_gradient)


@pytest.mark.parametrize("sampling", ["batch", "image"])
def test_real_draws_estimate_all_negatives(
    random_tree: MakeTree, sampling: Sampling, generator: torch.Generator
) -> None:
    """The mean over many real draws lies within five standard errors of the loss of all negatives."""
    tree = random_tree((40, 8, 3), 6)
    z = torch.randn(8, 3, 6, generator=generator)
    leaves = torch.randint(40, (8,), generator=generator)
    full_loss, full_gradient = loss_and_gradient(z, tree, leaves, negatives=None)
    draws = [
        loss_and_gradient(z, tree, leaves, negatives=4, sampling=sampling, generator=generator) for _ in range(1500)
    ]
    losses = torch.tensor([loss for loss, _ in draws], dtype=torch.float64)
    assert abs(float(losses.mean()) - full_loss) < 5 * float(losses.std()) / len(draws) ** 0.5
    gradients = torch.stack([gradient for _, gradient in draws]).double()
    error = gradients.std(0) / len(draws) ** 0.5
    assert bool(((gradients.mean(0) - full_gradient).abs() < 5 * error + 1e-7).all())


@pytest.mark.parametrize("sampling", ["batch", "image"])
def test_the_own_leaf_is_never_a_negative(sampling: Sampling, generator: torch.Generator) -> None:
    """An image that sits on its own path and far from all others loses nothing to its negatives, whatever is drawn."""
    leaves = torch.arange(4)
    prototypes = torch.eye(4)
    tree = PrototypeTree(prototypes=(prototypes,), parents=(), leaves=leaves)
    z = prototypes[:, None]  # cos 1 to the own leaf, 0 to the others, so every true negative adds log 2
    for _ in range(50):
        for negatives in (1, 2, 3):
            loss = spd_loss(z, tree, leaves, negatives=negatives, sampling=sampling, generator=generator)
            assert float(loss) == pytest.approx(math.log(2), rel=1e-6)


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sampling", ["batch", "image"])
@pytest.mark.parametrize(
    "case", ["on the own path", "opposite the own path", "on a negative path", "zero", "tiny", "huge", "random"]
)
def test_finite_for_every_input(random_tree: MakeTree, dtype: torch.dtype, sampling: Sampling, case: str) -> None:
    tree = random_tree((6, 3, 2), 16)
    leaves = torch.tensor([0, 1, 2, 5])
    others = (leaves + 1) % 6

    def on(path: Tensor) -> Tensor:
        return torch.stack([nodes[path[:, level]] for level, nodes in enumerate(tree.prototypes)], dim=1)

    z = {
        "on the own path": on(tree.path(leaves)),
        "opposite the own path": -on(tree.path(leaves)),
        "on a negative path": on(tree.path(others)),
        "zero": torch.zeros(4, 3, 16),
        "tiny": torch.randn(4, 3, 16, dtype=torch.float64) * torch.finfo(dtype).tiny,
        "huge": torch.randn(4, 3, 16, dtype=torch.float64).clamp(-1, 1) * (torch.finfo(dtype).max / 2),
        "random": torch.randn(4, 3, 16),
    }[case].to(dtype)
    for negatives in (2, None):
        z = z.detach().requires_grad_()
        loss = spd_loss(z, tree, leaves, negatives=negatives, sampling=sampling)
        loss.backward()
        assert loss.isfinite()
        assert z.grad is not None
        assert bool(z.grad.isfinite().all())
        assert z.grad.dtype == dtype
        z.grad = None


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e25])
def test_only_the_direction_of_z_counts(random_tree: MakeTree, scale: float) -> None:
    tree = random_tree((30, 6), 12)
    z = torch.randn(5, 2, 12)
    leaves = torch.arange(5)
    loss = float(spd_loss(z, tree, leaves, negatives=None))
    assert float(spd_loss(z * scale, tree, leaves, negatives=None)) == pytest.approx(loss, rel=1e-5)


def test_half_precision_is_close_to_single(random_tree: MakeTree) -> None:
    tree = random_tree((30, 6, 2), 64)
    z = torch.randn(16, 3, 64)
    leaves = torch.arange(16)
    single = float(spd_loss(z, tree, leaves, negatives=None))
    for dtype in (torch.bfloat16, torch.float16):
        assert float(spd_loss(z.to(dtype), tree, leaves, negatives=None)) == pytest.approx(single, rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_computed_in_single_precision_whatever_the_type_and_under_autocast(
    random_tree: MakeTree, dtype: torch.dtype
) -> None:
    tree, leaves = random_tree((30, 6, 2), 64), torch.arange(16)
    z = torch.randn(16, 3, 64).to(dtype)
    single, gradient = loss_and_gradient(z.float(), tree, leaves, negatives=None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, found = loss_and_gradient(z, tree, leaves, negatives=None)
    assert float(loss) == pytest.approx(float(single), rel=1e-6)
    torch.testing.assert_close(found, gradient.to(dtype), rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-7)


@pytest.mark.parametrize("cosine", [-0.98, 0.0, 0.9, 0.999])
def test_single_precision_is_exact_for_similarities_near_0_and_near_1(cosine: float) -> None:
    """An image on its own path, whose only negative has s = 1e-6 … 0.9985: log of a rounded 1 − s would be wrong."""
    nodes = torch.tensor([[1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]])
    leaves = torch.tensor([0])
    tree = PrototypeTree(prototypes=(nodes,) * 3, parents=(torch.arange(2),) * 2, leaves=leaves)
    s = ((1 + cosine) / 2) ** 3
    loss, gradient = loss_and_gradient(nodes[:1].repeat(3, 1)[None], tree, leaves, negatives=1)
    assert loss == pytest.approx(-math.log1p(-s), rel=2e-4)
    pull = s / (1 - s) / (1 + cosine) * math.sqrt(1 - cosine**2)
    torch.testing.assert_close(gradient[0, :, 1], torch.full((3,), pull), rtol=2e-4, atol=0)


def test_on_a_negative_path_only_the_own_path_pulls(random_tree: MakeTree) -> None:
    """There log(1 − s) is cut off; what rounding leaves of its gradient, which is 0 / 0, must not be amplified."""
    tree = random_tree((8,), 16)
    leaves = torch.arange(4)
    z = tree.prototypes[0][leaves + 4][:, None]
    _, found = loss_and_gradient(z, tree, leaves, negatives=None)
    wide = z.double().requires_grad_()
    cosines = torch.nn.functional.normalize(wide[:, 0], dim=-1) @ tree.prototypes[0].double().T  # (4, 8)
    s = (1 + cosines) / 2
    own = torch.nn.functional.one_hot(leaves, 8).bool()
    cut = torch.nn.functional.one_hot(leaves + 4, 8).bool()
    negative = torch.where(own | cut, 0, torch.log1p(-s.masked_fill(own | cut, 0)))
    loss = -(s[own].log() + negative.sum(1) / 7).mean()
    (expected,) = torch.autograd.grad(loss, wide)
    torch.testing.assert_close(found, expected.float(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gradients_keep_a_scalers_factor(random_tree: MakeTree, dtype: torch.dtype) -> None:
    """Each of many negatives pulls by less than float16 can hold; the factor must come in before the rounding."""
    tree = random_tree((400, 20), 64)
    z, leaves, factor = torch.randn(64, 2, 64), torch.arange(64), 2.0**14
    _, single = loss_and_gradient(z, tree, leaves, negatives=None)
    half = z.to(dtype).requires_grad_()
    (scaled,) = torch.autograd.grad(spd_loss(half, tree, leaves, negatives=None) * factor, half)
    error = (scaled.float() / factor - single).norm() / single.norm()
    assert float(error) < 0.02


def test_a_step_against_the_gradient_nears_the_own_path(random_tree: MakeTree) -> None:
    torch.manual_seed(0)  # with some draws a few rows need more steps
    tree = random_tree((30, 6), 16)
    leaves = torch.arange(10)
    z = torch.randn(10, 2, 16, requires_grad=True)
    optimiser = torch.optim.SGD([z], lr=1.0)
    for _ in range(300):
        optimiser.zero_grad()
        spd_loss(z, tree, leaves, negatives=None).backward()
        optimiser.step()
    assert torch.equal(tree.assign(z[:, 0].detach()), leaves)


def test_the_generator_decides(random_tree: MakeTree) -> None:
    tree = random_tree((300, 6), 8)
    z, leaves = torch.randn(4, 2, 8), torch.arange(4)
    samplings: tuple[Sampling, ...] = ("batch", "image")
    for sampling in samplings:
        losses = [
            float(
                spd_loss(
                    z,
                    tree,
                    leaves,
                    negatives=5,
                    sampling=sampling,
                    generator=torch.Generator().manual_seed(seed),
                )
            )
            for seed in (1, 1, 2)
        ]
        assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"z": torch.randn(4, 3, 8)}, r"\(B, 2, 8\).*\(4, 3, 8\)"),
        ({"z": torch.randn(4, 2, 7)}, r"\(B, 2, 8\).*\(4, 2, 7\)"),
        ({"z": torch.ones(4, 2, 8, dtype=torch.int64)}, "float.*int64"),
        ({"z": torch.randn(0, 2, 8), "leaves": torch.zeros(0, dtype=torch.int64)}, "at least 1"),
        ({"leaves": torch.arange(3)}, r"\(4,\).*\(3,\)"),
        ({"leaves": torch.arange(4.0)}, "int64.*float32"),
        ({"leaves": torch.tensor([0, 1, 2, 20])}, r"0 … 19.*20"),
        ({"leaves": torch.tensor([0, -1, 2, 3])}, r"0 … 19.*-1"),
        ({"negatives": 0}, "negatives is 0, but must be at least 1"),
        ({"sampling": "row"}, "'row', but must be one of batch, image"),
    ],
)
def test_bad_input_is_named(random_tree: MakeTree, change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"z": torch.randn(4, 2, 8), "leaves": torch.arange(4), "tree": random_tree((20, 5), 8)}
    with pytest.raises(ValueError, match=message):
        spd_loss(**(good | change))  # type: ignore[arg-type]


def nodes_one_by_one(z: Tensor, tree: PrototypeTree, leaves: Tensor, temperature: float) -> float:
    """The cross-entropy of every image and level, one after the other."""
    total = 0.0
    for image, leaf in zip(z, leaves.tolist(), strict=True):
        for level, (representation, own) in enumerate(zip(image, path_of(tree, leaf), strict=True)):
            unit = representation / representation.norm()
            every = [math.exp(float(unit @ node) / temperature) for node in tree.prototypes[level]]
            total -= math.log(math.exp(float(unit @ own) / temperature) / sum(every))
    return total / z.shape[1] / len(z)


@pytest.mark.parametrize("temperature", [0.05, 0.1, 1.0])
def test_the_loss_of_nodes_equals_a_slow_loop(random_tree: MakeTree, temperature: float) -> None:
    tree = double(random_tree((20, 5, 2), 8))
    z = torch.randn(6, 3, 8, dtype=torch.float64, requires_grad=True)
    leaves = torch.tensor([0, 3, 3, 19, 7, 11])
    expected = nodes_one_by_one(z, tree, leaves, temperature)
    assert float(node_loss(z, tree, leaves, temperature=temperature)) == pytest.approx(expected, rel=1e-9)
    assert torch.autograd.gradcheck(lambda z: node_loss(z, tree, leaves, temperature=temperature), (z,))


def test_nodes_leave_alone_what_is_clearly_inside_and_paths_do_not() -> None:
    directions = torch.eye(6)
    tree = PrototypeTree(
        prototypes=(directions, directions[:2] + 0),
        parents=(torch.tensor([0, 0, 0, 1, 1, 1]),),
        leaves=torch.zeros(1, dtype=torch.int64),
    )
    near = torch.tensor([[1.0, 0, 0, 0, 0, 0.3]])  # well inside leaf 0, yet not at its prototype
    pulls = []
    for loss in (
        lambda z: node_loss(z, tree, torch.tensor([0]), temperature=0.05),
        lambda z: spd_loss(z, tree, torch.tensor([0])),
    ):
        z = near[:, None].repeat(1, 2, 1).requires_grad_()
        loss(z).backward()
        assert z.grad is not None
        pulls.append(float(z.grad.norm()))
    assert pulls[0] < 1e-4 < 0.05 < pulls[1]


def test_the_loss_of_nodes_is_exact_in_half_precision(random_tree: MakeTree) -> None:
    tree = random_tree((20, 5), 8)
    z, leaves = torch.randn(4, 2, 8).half(), torch.arange(4)
    expected = nodes_one_by_one(z.double(), double(tree), leaves, 0.07)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert float(node_loss(z, tree, leaves)) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match=r"0 … 19.*20"):
        node_loss(z, tree, leaves + 17)
