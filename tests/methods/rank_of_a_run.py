"""Training steps as a run takes them; as a script, one process of a gloo group that takes them together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hirl import methods
from hirl.methods.base import Method, Output, Plan


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


def take_step(method: Method, optimiser: torch.optim.Optimizer, parts: list[list[Tensor]], step: int) -> Output:
    """One step over one or more parts of a batch; gradients are averaged over the ranks."""
    torch.manual_seed(step)
    rates = method.rates(step)
    for group in optimiser.param_groups:
        group["lr"] = (method.peak_lr if group.get("fixed_lr") else rates.lr) * group.get("lr_scale", 1.0)
        group["weight_decay"] = rates.weight_decay * group.get("wd_scale", 1.0)
    for views in parts:
        output: Output = method(views, [None] * len(views), step)
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
        outputs = train(method, batches)
        outcomes[label] = {
            "losses": torch.stack([output.loss.detach() for output in outputs]),
            "target_z0": outputs[-1].target_z0,
            "state": dict(method.state_dict()),
        }
    torch.save(outcomes, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
