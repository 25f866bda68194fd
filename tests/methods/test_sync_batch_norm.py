"""Batch norm over all ranks is plain batch norm of all their rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from hirl.encoders.adapter import AdaptedNetwork
from hirl.encoders.backbones import make_backbone
from hirl.methods.parts.split_batch_norm import average_statistics
from hirl.methods.parts.sync_batch_norm import SyncBatchNorm, synchronise_batch_norm

WORLD = 2


def random_norm(kind: Callable[..., nn.Module], affine: bool, generator: torch.Generator) -> nn.Module:
    norm = kind(5, affine=affine).double()
    for tensor in (*norm.parameters(), norm.running_mean):
        assert isinstance(tensor, Tensor)
        nn.init.normal_(tensor, generator=generator)
    return norm


@pytest.mark.parametrize("first", [6, 2, 0], ids=["equal shares", "unequal", "a rank without rows"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm1d, (6, 5)), (nn.BatchNorm2d, (6, 5, 4, 3))])
@pytest.mark.usefixtures("two_ranks")
def test_ranks_normalise_as_one(
    kind: type[nn.BatchNorm1d], shape: tuple[int, ...], affine: bool, first: int, generator: torch.Generator
) -> None:
    """Output, the gradient of the summed losses, and running statistics."""
    plain = random_norm(kind, affine, generator)
    synced = [SyncBatchNorm(copy.deepcopy(plain)).double() for _ in range(WORLD)]  # type: ignore[arg-type]
    rows = 3 + torch.randn(WORLD * shape[0], *shape[1:], generator=generator, dtype=torch.double)
    shares = [first, len(rows) - first]
    rows[: shape[0]] *= 2  # the ranks' own statistics differ
    upstream = torch.randn(rows.shape, generator=generator, dtype=torch.double)
    joined = rows.clone().requires_grad_()
    expected = plain(joined)
    (expected * upstream).sum().backward()

    def on_a_rank(rank: int) -> tuple[Tensor, Tensor]:
        mine = rows.split(shares)[rank].clone().requires_grad_()
        result = synced[rank](mine)
        (result * upstream.split(shares)[rank]).sum().backward()
        assert mine.grad is not None
        return result.detach(), mine.grad

    with ThreadPoolExecutor(WORLD) as pool:
        results, gradients = zip(*pool.map(on_a_rank, range(WORLD)), strict=True)
    torch.testing.assert_close(torch.cat(results), expected.detach())
    torch.testing.assert_close(torch.cat(gradients), joined.grad)
    for name, parameter in plain.named_parameters():  # each rank has its rows' part
        torch.testing.assert_close(sum(dict(norm.named_parameters())[name].grad for norm in synced), parameter.grad)
    for norm in synced:
        torch.testing.assert_close(norm.state_dict(), plain.state_dict())


@pytest.mark.usefixtures("two_ranks")
def test_half_precision_is_normalised_in_full(generator: torch.Generator) -> None:
    norm = SyncBatchNorm(nn.BatchNorm1d(5))
    rows = 100 + torch.randn(64, 5, generator=generator)
    with ThreadPoolExecutor(WORLD) as pool:
        results = list(pool.map(lambda norm: norm(rows.bfloat16()), (norm, copy.deepcopy(norm))))
    assert {result.dtype for result in results} == {torch.bfloat16}
    expected = nn.BatchNorm1d(5)(rows.bfloat16().float())
    torch.testing.assert_close(results[0], expected.bfloat16())
    assert norm.running_mean.dtype == torch.float32


@pytest.mark.usefixtures("two_ranks")
def test_every_batch_norm_is_synchronised_and_keeps_its_weights() -> None:
    network = nn.Sequential(make_backbone("resnet10t", channels=[8, 8, 16, 16]), nn.BatchNorm1d(16, affine=False))
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    synchronise_batch_norm(network)
    norms = [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert {type(norm) for norm in norms} == {SyncBatchNorm}
    assert not any(isinstance(norm, nn.SyncBatchNorm) for norm in norms)  # DDP refuses torch's on a CPU
    assert len(norms) == len([key for key in before if key.endswith("running_mean")])
    after = network.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
    images = torch.randn(2, 3, 32, 32)
    plain = nn.Sequential(make_backbone("resnet10t", channels=[8, 8, 16, 16]), nn.BatchNorm1d(16, affine=False))
    plain.load_state_dict(after)
    with torch.no_grad():  # for evaluation no rank waits for another
        torch.testing.assert_close(network.eval()(images), plain.eval()(images))


@pytest.mark.usefixtures("two_ranks")
def test_a_frozen_network_keeps_its_batch_norm() -> None:
    """It uses stored statistics; Lightning synchronises a module again at each fit."""
    adapted = AdaptedNetwork(make_backbone("mobilenetv3_small_050"), 8, hidden=4)
    network = nn.Sequential(adapted, nn.BatchNorm1d(8))
    for _ in range(2):
        synchronise_batch_norm(network)
    assert type(network[1]) is SyncBatchNorm
    assert not any(isinstance(module, SyncBatchNorm) for module in adapted.modules())


def test_statistics_of_layers_in_eval_mode_are_not_averaged(as_rank: Callable[..., None]) -> None:
    """The mean of three equal numbers may be another one."""
    as_rank(of=3, mean=lambda mine: mine + 1)
    network = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval())
    average_statistics(network)
    assert [norm.running_mean.tolist() for norm in network] == [[1, 1], [0, 0]]  # type: ignore[operator]


def test_alone_batch_norm_stays_plain() -> None:
    network = nn.Sequential(nn.BatchNorm1d(4))
    synchronise_batch_norm(network)
    assert type(network[0]) is nn.BatchNorm1d


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: make_backbone("mobilenetv3_small_050"), "BatchNormAct2d cannot be synchronised over 2 ranks"),
        (lambda: nn.Sequential(nn.BatchNorm1d(4, momentum=None)), "cannot be synchronised .* no running statistics"),
    ],
)
def test_batch_norm_that_cannot_be_synchronised_says_so(network: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        synchronise_batch_norm(network())
