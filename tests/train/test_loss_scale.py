"""16-mixed with a real gradient scaler and float16 on the CPU: clipping, skipped steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hirl.data import Shapes
from hirl.data.loader import EvaluationLoader, Loader
from hirl.hierarchy.settings import Hierarchy
from hirl.methods.base import Method, Plan
from hirl.train import loop as loop_module
from hirl.train.keeping import Store
from hirl.train.loop import Loop
from hirl.train.observer import Observer
from hirl.train.setup import Components, build_paths

from ..small_methods import METHODS, NAMES, small_arguments

BATCH, SIZE, EPOCHS = 16, 16, 2
SCALE = 16.0  # small: the gradients of an untrained head without batch norm are large
OVERFLOW = 2.0**126  # a scale at which the gradients of any loss overflow


@pytest.fixture(scope="module")
def images() -> Shapes:
    return Shapes(images=3 * BATCH, size=SIZE, cache=False)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small(name: str, **changes: Any) -> Method:
    quick = {"local_crops": 2, "warmup_epochs": 0, "frozen_epochs": 0, "queue_length": 32, "queue_epoch": 0}
    return METHODS[name](**small_arguments(name, size=SIZE, **quick | changes))


@pytest.fixture
def loop_of(images: Shapes) -> Callable[..., Loop]:
    def make(method: Method, *, scale: float | None, hierarchy: Hierarchy | None = None) -> Loop:
        """A loop in 16-mixed that starts at a scale, or in 32-true."""
        loader = Loader(images, method.views(SIZE), batch_size=BATCH)
        plan = Plan(EPOCHS, len(loader), BATCH, SIZE)
        torch.manual_seed(0)
        method.build(plan)
        options: dict[str, Any] = {"precision": "32-true"}
        if scale is not None:
            scaler = torch.amp.GradScaler("cpu", init_scale=scale)
            options = {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}
        resolved = None if hierarchy is None else hierarchy.resolve(len(images), EPOCHS)
        parts = Components(
            method=method,
            hierarchy=resolved,
            paths=build_paths(resolved, method, seed=0),
            plan=plan,
            loader=loader,
            evaluation_loader=EvaluationLoader(images, size=SIZE),
            N=len(images),
            seed=0,
        )
        return Loop(Fabric(accelerator="cpu", devices=1, **options), parts, Observer(), Store())

    return make


def take_steps(loop: Loop, count: int) -> dict[str, Tensor]:
    """Take steps from the loop's own on, all of the first epoch; return the figures of the last."""
    loop.module.train()
    loop.loader.set_epoch(0, loop.step)
    for _, batch in zip(range(count), loop.loader, strict=False):
        figures = loop._step([batch])
        loop.step += 1
    return figures


def gradients_of_first_step(loop: Loop) -> list[Tensor]:
    """As AdamW got them: its first average is a tenth of them."""
    take_steps(loop, 1)
    return [
        loop.optimiser.state[weight]["exp_avg"] * 10
        for group in loop.optimiser.param_groups
        for weight in group["params"]
        if weight in loop.optimiser.state
    ]


@pytest.mark.parametrize("name", ["DINO", "IBOT"])
def test_gradients_are_clipped_as_in_full_precision(name: str, loop_of: Callable[..., Loop]) -> None:
    """Clipping adds no error to the one that float16 makes without it."""
    clip, found = 0.003, {}
    for limit in (None, clip):
        for scale in (None, SCALE):
            found[limit, scale] = gradients_of_first_step(
                loop_of(small(name, clip=limit, head_batch_norm=False), scale=scale)
            )
    clipped = 0
    for full, half, free, free_half in zip(
        found[clip, None], found[clip, SCALE], found[None, None], found[None, SCALE], strict=True
    ):
        norm = float(full.norm())
        clipped += float(free.norm()) > clip
        assert norm < 1.001 * clip
        error = float((free_half - free).norm() / free.norm())
        assert error < 0.03
        assert float((half - full).norm()) <= 2.001 * error * norm  # scaled to a length, and moved by the error in it
    assert clipped > len(found[clip, None]) // 2


@pytest.mark.parametrize("name", NAMES)
def test_a_skipped_step_has_not_been_taken(name: str, loop_of: Callable[..., Loop]) -> None:
    hierarchy = Hierarchy(levels=(6, 2), negatives=3, start_epoch=1)
    loop = loop_of(small(name), scale=OVERFLOW, hierarchy=hierarchy)
    before = copied(loop.state_dict())
    figures = take_steps(loop, 1)
    after = loop.state_dict()
    assert_equal(before["joint"], after["joint"])
    assert figures["skipped"] == 1
    assert after.pop("loss_scale")["scale"] == OVERFLOW / 2
    assert before.pop("loss_scale")["scale"] == OVERFLOW
    assert (before.pop("step"), after.pop("step")) == (0, 1)
    for state in (before, after):
        del state["optimiser"]["param_groups"]  # their rates are functions of the step
        del state["means"]  # the loss of a skipped step counts among those of its epoch
    assert_equal(before, after)
    # The steps that follow are those of a loop that never saw the first batch.
    other = loop_of(small(name), scale=256.0, hierarchy=hierarchy)
    other.step = 1
    loop.loss_scale.load_state_dict(other.loss_scale.state_dict())
    for each in (loop, other):
        assert take_steps(each, 2)["skipped"] == 0
    ends = [copied(each.state_dict()) for each in (other, loop)]
    assert [state.pop("means")["steps"]["loss_image"] for state in ends] == [2, 3]
    assert_equal(*ends)


def copied(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    return state.clone() if isinstance(state, Tensor) else state


def assert_equal(one: Any, other: Any, where: str = "") -> None:
    """To the bit, at any depth."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_equal(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            assert_equal(mine, theirs, f"{where}[{place}]")
    else:
        assert one == other, where


def test_the_scale_is_reported_without_a_wait(loop_of: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of the step, though the step halves it; only who reports it reads it."""
    loop = loop_of(small("SimSiam"), scale=OVERFLOW)
    take_steps(loop, 1)
    read = []
    monkeypatch.setattr(torch.amp.GradScaler, "get_scale", lambda _: read.append("waited"))
    for halved in (2, 4):
        take_steps(loop, 1)
        assert float(loop._rates["loss_scale"]) == OVERFLOW / halved
    assert read == []


class Waits(TorchDispatchMode):
    """Counts the reads of values, each of which would make a GPU wait."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("at_once", "expected"), [((), 0), (("cpu",), 2)])
def test_a_gpu_does_not_wait_for_the_check_of_the_loss(
    at_once: tuple[str, ...], expected: int, loop_of: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "SYNCHRONOUS_DEVICES", at_once)
    loop = loop_of(small("SimSiam"), scale=None)
    (first, second, third) = loop.loader
    loop._step([first])  # step 0 is checked on any device
    waits = Waits()
    for batch in (second, third):
        loop.step += 1
        with waits:
            loop._step([batch])
    assert waits.count == expected
