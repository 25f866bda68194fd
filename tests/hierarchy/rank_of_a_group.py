"""One process of a gloo group, run by test_sharded.py: clusters its share of the rows and writes down what it got."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hirl import PrototypeTree, SemanticPaths, hierarchical_kmeans

sent: list[int] = []


def count_what_is_sent() -> None:
    """Notes the number of values of every tensor that leaves this process."""

    def counted(call: Any, place: int) -> Any:
        def counting(*arguments: Any, **options: Any) -> Any:
            sent.append(arguments[place].numel())
            return call(*arguments, **options)

        return counting

    for name, place in (("all_reduce", 0), ("broadcast", 0), ("all_gather", 1)):
        setattr(dist, name, counted(getattr(dist, name), place))


def outcome(of: Any) -> Any:
    """What a call gave, or the message of the ValueError it ended in."""
    try:
        return of()
    except ValueError as error:
        return str(error)


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    group = dist.group.WORLD
    task: dict[str, Any] = torch.load(folder / "task.pt", weights_only=True)
    features, levels = task["features"], tuple(task["levels"])
    mine: Tensor = features.split(task["shares"])[rank]
    count_what_is_sent()

    tree = hierarchical_kmeans(mine, levels, seed=3, group=group)
    most_sent = max(sent)
    start = PrototypeTree.from_tensors(task["start"])
    warm = hierarchical_kmeans(mine, levels, init=start, iterations=3, tolerance=0, group=group)
    orders = {
        name: hierarchical_kmeans(mine, levels, seed=3, group=group, **options).tensors()
        for name, options in (
            ("bottom-up", {"order": "bottom-up"}),
            ("weighted", {"order": "bottom-up", "weighted": True}),
            ("ward", {"order": "ward"}),
            ("ward of clusters", {"order": "ward", "linked": 400}),
            ("ward, averaged", {"order": "ward", "averaged": 5}),
            ("pooled features", {"order": "ward", "averaged": 5, "centre": True, "components": 12, "whiten": 0.5}),
        )
    }
    tailed = hierarchical_kmeans(task["heavy tail"].split(task["shares"])[rank], (200, 60, 6), group=group)
    reduction: dict[str, Any] = {"centre": True, "components": 12, "whiten": 0.5}
    reduced = hierarchical_kmeans(mine, levels, seed=3, group=group, **reduction)
    starved = hierarchical_kmeans(task["repeated"].split(task["shares"])[rank], (6, 2), group=group)

    paths = SemanticPaths(features.shape[1], levels)
    by_order = paths.refresh(mine, seed=3, group=group).leaves
    places = torch.arange(rank, len(features), world)  # as a distributed sampler deals them
    dealt = SemanticPaths(features.shape[1], levels)
    by_index = dealt.refresh(features[places], index=places, group=group).leaves
    twice = torch.cat((places, places[:1]))
    padded = SemanticPaths(features.shape[1], levels).refresh(features[twice], index=twice, group=group)

    bad = mine.clone()
    if rank == 1:
        bad[2, 0] = torch.nan
    narrow = mine[:, : 3 if rank == 1 else None]
    torch.save(
        {
            "tree": tree.tensors(),
            "most_sent": most_sent,
            "warm": warm.tensors(),
            **orders,
            "starved": starved.tensors(),
            "reduced": reduced.tensors(),
            "heavy tail": tailed.tensors(),
            "by_order": by_order,
            "by_index": by_index,
            "dealt": dealt.tree.tensors() if dealt.tree else {},
            "padded": padded.tensors(),
            "bad row": outcome(lambda: hierarchical_kmeans(bad, levels, group=group)),
            "other width": outcome(lambda: hierarchical_kmeans(narrow, levels, group=group)),
            "too many clusters": outcome(lambda: hierarchical_kmeans(mine, (len(features) + 1,), group=group)),
            "image left out": outcome(lambda: paths.refresh(features[places], index=places * 2, group=group)),
            "index on one rank wrong": outcome(
                lambda: paths.refresh(mine, index=torch.arange(len(mine)) - int(rank == 1), group=group)
            ),
        },
        folder / f"rank{rank}.pt",
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
