"""The paper's search for levels and negatives (Sec. 4.1): the lowest joint loss on held-out training images.

Each choice is a run of its own in one folder. Finished runs are kept, so the same call continues.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hirl.data.loader import Loader
from hirl.data.sources import open_in_memory
from hirl.data.sources.subset import Subset
from hirl.files import atomic_write
from hirl.hierarchy.levels import check_levels, suggest_levels
from hirl.hierarchy.settings import Hierarchy
from hirl.methods.base import Method
from hirl.runs.folder import Run
from hirl.runs.representations import load_trained
from hirl.terminal.tables import Cells, print_tables, write_tables
from hirl.train.joint import Joint
from hirl.train.pretrain import pretrain

HELD_OUT = 8000  # images, as in the paper; at most a fifth of all
NEGATIVES = (100, 1000)
LOSSES = "losses.json"
Choice = tuple[tuple[int, ...], int]  # levels, negatives


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
        method: One of DINO, IBOT, MoCoV2, MoCoV3, SimSiam, SwAV, or a class of your own.
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
    images = open_in_memory(data, split=split, channels=channels)
    count = held_out if held_out is not None else min(HELD_OUT, len(images) // 5)
    if not 1 <= count < len(images):
        raise ValueError(f"held_out is {count}, but must be at least 1 and below the {len(images)} images")
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(images)))
    held, kept = (Subset(images, part.sort().values) for part in (order[:count], order[count:]))
    choices = grid(len(kept), levels, negatives)
    folder = Path(out)
    losses: dict[Choice, dict[str, float]] = {}
    for sizes, paths in choices:
        chosen = replace(hierarchy, levels=sizes, negatives=paths)
        name = f"levels-{'-'.join(map(str, sizes))}-negatives-{paths}"
        fresh = type(method)(**method.arguments)
        run = pretrain(kept, fresh, chosen, out=folder / name, channels=channels, seed=seed, **options)
        losses[sizes, paths] = held_out_loss(run, type(method), held, seed)
        tables = {"tuning": _table(losses)}
        write_tables(folder, tables)
    print_tables(tables)
    best = min(losses, key=lambda choice: losses[choice]["joint"])
    return replace(hierarchy, levels=best[0], negatives=best[1])


def grid(N: int, levels: Sequence[Sequence[int]] | None, negatives: Sequence[int] | None) -> list[Choice]:
    """The choices to try: as given, or the paper's two trees, which differ in their coarsest level, with 100 and 1,000
    negatives.

    For N images the first tree is `suggest_levels(N)`; the second has half as many roots as nodes on the level below
    them. At ImageNet's size these are the paper's two. There are never more negatives than leaves.
    """
    if levels is None:
        usual = tuple(suggest_levels(N))
        broad = (*usual[:-1], usual[-2] // 2) if len(usual) > 2 else usual
        levels = list(dict.fromkeys((usual, broad)))
    trees = [check_levels(sizes, N) for sizes in levels]
    counts = NEGATIVES if negatives is None else negatives
    if not trees or not counts or min(counts) < 1:
        raise ValueError(f"there must be levels and negatives of at least 1 to try, not {levels} and {negatives}")
    return list(dict.fromkeys((sizes, min(count, sizes[0] - 1)) for sizes, count in product(trees, counts)))


@torch.no_grad()
def held_out_loss(run: Run, method: type[Method], images: Subset, seed: int) -> dict[str, float]:
    """L_img, L_SPD and their sum over images that the run was not trained on; kept in the run's folder.

    The losses are those of the run's last step: its teacher's temperature, its negatives and its weight of L_SPD. The
    leaf of each image is found from its second global view, since no clustering has stored one.
    """
    file = run.folder / LOSSES
    if file.is_file() and "step" in (kept := json.loads(file.read_text(encoding="utf-8"))):
        return dict(kept)
    trained, config = load_trained(run, method=method), run.config
    views = trained.method.views(config["image_size"])
    normal: dict[str, Any] = {name: config[name] and tuple(config[name]) for name in ("mean", "std")}
    batch_size = min(config["batch_size"], len(images))
    joint = Joint(trained.method, trained.paths, assign="step").eval()
    sums = torch.zeros(2, dtype=torch.float64)
    loader = Loader(images, views, batch_size=batch_size, seed=seed, shuffle=False, **normal)
    last = trained.step - 1
    for number, batch in enumerate(loader):
        losses = joint(batch.views, batch.masks, batch.index, last, number)
        sums += torch.stack((losses.image, losses.spd)).double()
    image, spd = (sums / len(loader)).tolist()
    found = {"joint": image + spd, "image": image, "spd": spd, "step": trained.step}  # earlier versions: of step 0 on
    with atomic_write(file) as aside:
        aside.write_text(json.dumps(found), encoding="utf-8")
    return found


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
