"""The paper's search for levels and negatives (Sec. 4.1): the lowest joint loss on held-out training images.

Each choice is a run of its own in one folder. Finished runs are kept, so the same call continues; the same call in
other processes shares the work: each takes the next choice that nobody holds.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hirl import ranks
from hirl.config.signatures import passes_options_to
from hirl.data.loader import Loader
from hirl.data.sources import open_in_memory
from hirl.data.sources.image_set import Subset
from hirl.files import read_json, write_json
from hirl.hierarchy.levels import FEWEST, check_levels, levels_by_number
from hirl.hierarchy.settings import Hierarchy
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Method
from hirl.processes import count_processes
from hirl.run import Run
from hirl.runs.checkpoint import load_checkpoint
from hirl.runs.representations import TREE, load_trained
from hirl.studies.arms import check_folder, next_arms
from hirl.terminal.tables import Cells, print_tables, write_tables
from hirl.train.joint import Joint
from hirl.train.machine import read_machine
from hirl.train.pretrain import pretrain

HELD_OUT = 8000  # images, as in the paper; at most a fifth of all
NEGATIVES = (100, 1000)
LOSSES = "losses.json"
Choice = tuple[tuple[int, ...], int]  # levels, negatives


@passes_options_to(pretrain)
def tune(
    data: Any,
    method: Method,
    hierarchy: Hierarchy = Hierarchy(),  # noqa: B008 (frozen)
    *,
    out: str | os.PathLike[str] = "tuning",
    levels: Sequence[Sequence[int]] | None = None,
    negatives: Sequence[int] | None = None,
    held_out: int | None = None,
    split: str | None = None,
    channels: int = 3,
    seed: int = 0,
    **options: Any,
) -> Hierarchy:
    """Train once with each of levels × negatives and return the hierarchy with the lowest joint loss (Eq. 4).

    Args:
        data: A folder of images or anything else `hirl.data.open_images` takes.
        method: A method of hirl, such as DINO, or a class of your own.
        hierarchy: Settings that all choices share.
        out: Folder for the runs and the table.
        levels: Trees to try, such as 300,30 300,100,10; by default the paper's two, scaled to the number of images.
        negatives: Numbers of negative paths to try; by default 100 and 1000.
        held_out: Images kept out of training for the loss; by default 8,000, or a fifth of fewer than 40,000.
        split: The split of the data to train on; by default its training split.
        channels: 3, or 1 for grey.
        seed: Seed of all random draws.
        options: Further arguments of `hirl.pretrain`.
    """
    if not isinstance(method, Method):
        raise ValueError(f"method is {method!r}, but must be a method such as hirl.methods.DINO()")
    images = open_in_memory(data, split=split, channels=channels)
    count = held_out if held_out is not None else min(HELD_OUT, len(images) // 5)
    if not 1 <= count < len(images):
        raise ValueError(f"held_out is {count}, but must be at least 1 and below the {len(images)} images")
    if levels is None and len(images) - count < FEWEST:
        raise ValueError(
            f"held_out is {count}, but must leave at least {FEWEST} of the {len(images):,} images to train on"
        )
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(images)))
    held, kept = (Subset(images, part.sort().values) for part in (order[:count], order[count:]))
    choices = grid(len(kept), levels, negatives)
    folder = Path(out)
    check_folder(folder)
    losses: dict[Choice, dict[str, float]] = {}
    named = {f"levels-{'-'.join(map(str, sizes))}-negatives-{paths}": (sizes, paths) for sizes, paths in choices}
    accelerator = options.get("accelerator", "auto")
    device = torch.device(read_machine(accelerator).device)
    processes = count_processes(accelerator, devices=options.get("devices", "auto"), nodes=options.get("nodes", 1))

    def is_done(name: str) -> bool:
        return (folder / name / LOSSES).is_file()

    with closing(next_arms(list(named), folder, is_done, processes=processes)) as names:
        for name in names:
            sizes, paths = named[name]
            chosen = replace(hierarchy, levels=sizes, negatives=paths)
            run = pretrain(
                kept, method.unbuilt_copy(), chosen, out=folder / name, channels=channels, seed=seed, **options
            )
            losses[sizes, paths] = held_out_loss(run, type(method), held, seed, device=device)
            write_tables(folder, {"tuning": _table(losses)})
    for name, choice in named.items():  # those of other processes or an earlier call
        if choice not in losses:
            losses[choice] = held_out_loss(Run(folder / name), type(method), held, seed, device=device)
    tables = {"tuning": _table({choice: losses[choice] for choice in choices})}
    write_tables(folder, tables)
    print_tables(tables)
    best = min(losses, key=lambda choice: losses[choice]["joint"])
    if losses[best]["joint"] == inf:
        raise ValueError(f"no tree could be built with any of the levels: the runs in {str(folder)!r} say why")
    return replace(hierarchy, levels=best[0], negatives=best[1])


def grid(N: int, levels: Sequence[Sequence[int]] | None, negatives: Sequence[int] | None) -> list[Choice]:
    """The choices to try: as given, or the paper's two trees, which differ in their coarsest level, with 100 and 1,000
    negatives.

    For N images the first tree is `levels_by_number(N)`; the second has half as many roots as nodes on the level below
    them. At ImageNet's size these are the paper's two. There are never more negatives than leaves.
    """
    if levels is None:
        usual = tuple(levels_by_number(N))
        broad = (*usual[:-1], usual[-2] // 2) if len(usual) > 2 else usual
        levels = list(dict.fromkeys((usual, broad)))
    trees = [check_levels(sizes, N) for sizes in levels]
    counts = NEGATIVES if negatives is None else negatives
    if counts and min(counts) < 1:
        raise ValueError(f"negatives is {' '.join(map(str, counts))}, but must be at least 1")
    if not trees or not counts:
        raise ValueError(f"levels is {levels} and negatives {negatives}, but neither may be empty")
    return list(dict.fromkeys((sizes, min(count, sizes[0] - 1)) for sizes, count in product(trees, counts)))


@torch.no_grad()
def held_out_loss(
    run: Run, method: type[Method], images: Subset, seed: int, *, device: torch.device | None = None
) -> dict[str, float]:
    """L_img, L_SPD and their weighted sum over images that the run was not trained on; kept in the run's folder.

    The losses are those of the run's last step: its teacher's temperature, its negatives, its weight of L_SPD and its
    tree, that of the last epoch. The leaf of each image is found from its second global view, since no clustering has
    stored one. Every image counts once: a batch by its number of images. The networks are in eval mode, so a last batch
    of any size will do. Methods that compare the images of a batch (MoCo v3, SwAV) have an easier task in a smaller
    one, which is the same for all choices.
    """
    file = run.folder / LOSSES
    if (kept := _kept_losses(file)) is not None:
        return kept
    trained, config = load_trained(run, method=method), run.config
    if trained.paths is None:  # L_img alone would be below every sum of two losses
        warnings.warn(f"{str(run.folder)!r} never got a tree, so its losses do not count", stacklevel=2)
        return {"joint": inf, "image": nan, "spd": nan}
    # The tree that the heads were last trained with: a finished run's own is built after that, from nothing.
    state = load_checkpoint(run.checkpoint_file)
    trained.paths.tree = PrototypeTree.from_tensors(state["training_tree"] or state["joint"][TREE])
    views = trained.method.views(config["image_size"])
    batches: dict[str, Any] = {name: config[name] and tuple(config[name]) for name in ("mean", "std")}
    batches |= {"batch_size": min(config["batch_size"], len(images)), "drop_last": False}
    where = torch.device("cpu") if device is None else device
    joint = Joint(trained.method, trained.paths, assign="step").eval().to(where)
    sums = torch.zeros(3, dtype=torch.float64)
    last = trained.step - 1
    loader = Loader(images, views, seed=seed, shuffle=False, device=where, **batches)
    with ranks.alone():  # every process passes all batches, so that losses do not depend on their number
        for number, batch in enumerate(loader):
            losses = joint(batch.views, batch.masks, batch.index, last, number)
            sums += len(batch) * torch.stack((losses.total, losses.image, losses.spd)).cpu().double()
    joint_loss, image, spd = (sums / len(images)).tolist()
    found = {"joint": joint_loss, "image": image, "spd": spd, "step": trained.step, "images": len(images)}
    write_json(file, found)
    return found


def _kept_losses(file: Path) -> dict[str, float] | None:
    """The losses in a file; None if there is none, or it is damaged."""
    if not file.is_file():
        return None
    try:
        kept: dict[str, float] = dict(read_json(file))
    except (ValueError, TypeError):
        warnings.warn(f"{str(file)!r} is damaged; the losses are computed again", stacklevel=3)
        return None
    return kept


def _table(losses: dict[Choice, dict[str, float]]) -> Cells:
    lowest = min(found["joint"] for found in losses.values())
    rows = [
        [
            ", ".join(map(str, sizes)),
            str(count),
            *(f"{found[name]:.4f}" for name in ("joint", "image", "spd")),
            "lowest" if found["joint"] == lowest else "",
        ]
        for (sizes, count), found in losses.items()
    ]
    return [["levels", "negatives", "joint loss", "L_img", "L_SPD", ""], *rows]
