"""Training steps as a run takes them; as a script, one process of a gloo group that takes them together."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hirl import methods
from hirl.methods.base import Method, Output, Plan

from ..forked import Forked, wait_for_all


def built(name: str, arguments: dict[str, Any], plan: Plan, seed: int = 0) -> Method:
    method: Method = getattr(methods, name)(**arguments)
    torch.manual_seed(seed)
    method.build(plan)
    return method


def random_views(method: Method, plan: Plan, seed: int = 0, images: int | None = None) -> list[Tensor]:
    """A batch's views: noise around one pattern per image, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    count = plan.batch_size if images is None else images
    patterns = 2 * torch.randn(count, plan.channels, 2, 2, generator=generator)
    return [
        torch.nn.functional.interpolate(patterns, size=view.size)
        + 0.3 * torch.randn(count, plan.channels, view.size, view.size, generator=generator)
        for view in method.views(plan.image_size)
    ]


def masks_of(method: Method, plan: Plan, *, seed: int = 0, first: int = 0, images: int | None = None) -> list[Any]:
    """The masks of a batch's views, from the image at place `first` on: a tensor per masked view, else None."""
    samples = np.arange(first, first + (plan.batch_size if images is None else images))
    return [
        None if view.mask is None else view.mask.draw(view.size, seed, 0, samples, number)
        for number, view in enumerate(method.views(plan.image_size))
    ]


def take_step(method: Method, optimiser: torch.optim.Optimizer, parts: list[list[Tensor]], step: int) -> Output:
    """One step over one or more parts of a batch; gradients are averaged over the ranks."""
    torch.manual_seed(step)
    rates = method.rates(step)
    for group in optimiser.param_groups:
        group["lr"] = (method.peak_lr if group.get("fixed_lr") else rates.lr) * group.get("lr_scale", 1.0)
        group["weight_decay"] = rates.weight_decay * group.get("wd_scale", 1.0)
    rank = dist.get_rank() if dist.is_initialized() else 0
    for place, views in enumerate(parts):
        count = len(views[0])
        first = (rank * len(parts) + place) * count
        masks = masks_of(method, method.plan, seed=step, first=first, images=count)
        output: Output = method(views, masks, step)
        (output.loss / len(parts)).backward()
    if dist.is_initialized():
        for parameter in method.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
    method.before_update(step)
    method.clip_gradients(method.parameters())
    optimiser.step()
    optimiser.zero_grad()
    method.after_step(step)
    return output


def train(method: Method, batches: list[list[Tensor]], start: int = 0) -> list[Output]:
    method.train()
    optimiser = method.optimiser(method.param_groups(method))
    return [take_step(method, optimiser, [views], start + step) for step, views in enumerate(batches)]


def same_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def check_parts_make_one_step(name: str, arguments: dict[str, Any], plan: Plan) -> None:
    """Accumulated gradients: what a step takes of its batch, it takes of the complete one, once."""
    ends = []
    for parts in (1, 2):
        method = built(name, arguments, plan)
        views = random_views(method, plan)
        optimiser = method.optimiser(method.param_groups(method))
        for step in range(2):
            chunks = [[view.chunk(parts)[part] for view in views] for part in range(parts)]
            take_step(method, optimiser, chunks, step)
        ends.append(method.state_dict())
    torch.testing.assert_close(ends[0], ends[1])


def alone_and_together(
    methods: dict[str, tuple[str, dict[str, Any]]], plan: Plan, folder: Path
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What three steps of one process give, and those of each of two on halves of the same batches, by label.

    `methods`: name and arguments by label. An error stands in for what a method refuses.
    """
    tasks, alone = {}, {}
    for label, (name, arguments) in methods.items():
        method = built(name, arguments, plan).double()  # where the order of sums hardly shows
        batches = [[view.double() for view in random_views(method, plan, seed)] for seed in range(3)]
        tasks[label] = {"name": name, "arguments": arguments, "plan": dataclasses.asdict(plan), "batches": batches}
        alone[label] = results(method, train(method, batches))
    torch.save(tasks, folder / "tasks.pt")
    wait_for_all([Forked("tests.methods.rank_of_a_run", str(rank), "2", folder) for rank in range(2)])
    return alone, [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def results(method: Method, outputs: list[Output]) -> dict[str, Any]:
    """The losses of some steps, the last step's z⁰ of both kinds, and the state they end in."""
    return {
        "losses": torch.stack([output.loss.detach() for output in outputs]),
        "z0": outputs[-1].z0.detach(),
        "target_z0": outputs[-1].target_z0,
        "state": dict(method.state_dict()),
    }


def check_two_as_one(alone: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    # Parameters, queue, centre and running statistics: the ranks agree to the bit, …
    assert same_tensors(ranks[0]["state"], ranks[1]["state"])
    # … and with one process up to the order of sums.
    torch.testing.assert_close((ranks[0]["losses"] + ranks[1]["losses"]) / 2, alone["losses"])
    for key in ("z0", "target_z0"):
        if alone[key] is not None:
            torch.testing.assert_close(torch.cat([rank[key] for rank in ranks]), alone[key])
    torch.testing.assert_close(ranks[0]["state"], alone["state"])


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    outcomes: dict[str, dict[str, Any]] = {}
    for label, task in torch.load(folder / "tasks.pt", weights_only=True).items():
        try:
            method = built(task["name"], task["arguments"], Plan(**task["plan"])).double()
        except ValueError as error:
            outcomes[label] = {"error": str(error)}
            continue
        batches = [[view.chunk(world)[rank] for view in views] for views in task["batches"]]
        outcomes[label] = results(method, train(method, batches))
    torch.save(outcomes, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
