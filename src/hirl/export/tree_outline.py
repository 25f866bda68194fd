"""A tree without its vectors, for other programs: nodes with names, numbers of images and exemplars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hirl.hierarchy.mean_directions import mean_directions
from hirl.hierarchy.rows import Features, UnitRows
from hirl.hierarchy.tree import PrototypeTree

ROOT = "root"  # the name of what is above the coarsest nodes
EXEMPLARS = 3  # images that stand for a node


@dataclass(frozen=True)
class Node:
    """A node. `id` is its level and number, such as 2-17; that is also its name until it has been given one."""

    id: str
    name: str
    count: int = 0  # images below it
    exemplars: tuple[str, ...] = ()  # files, the most typical first


@dataclass(frozen=True)
class TreeOutline:
    """The nodes of each level, fine → coarse, and the parent at the next level of every node but the coarsest."""

    nodes: tuple[tuple[Node, ...], ...]
    parents: tuple[tuple[int, ...], ...]

    @classmethod
    def of_tree(
        cls,
        tree: PrototypeTree,
        *,
        names: Mapping[str, str] | None = None,
        exemplars: Mapping[str, Sequence[str]] | None = None,
    ) -> TreeOutline:
        """`names` and `exemplars` by level and number of the node ("2-17")."""
        counts = [tree.sizes(level).tolist() for level in range(len(tree.levels))]
        return cls.of_counts(counts, [level.tolist() for level in tree.parents], names=names, exemplars=exemplars)

    @classmethod
    def of_counts(
        cls,
        counts: Sequence[Sequence[int]],
        parents: Sequence[Sequence[int]],
        *,
        names: Mapping[str, str] | None = None,
        exemplars: Mapping[str, Sequence[str]] | None = None,
    ) -> TreeOutline:
        """Of the numbers of images of the nodes of each level, fine → coarse."""
        names, exemplars = names or {}, exemplars or {}
        nodes = []
        for level, sizes in enumerate(counts):
            keys = [f"{level}-{number}" for number in range(len(sizes))]
            nodes.append(
                tuple(
                    Node(key, names.get(key, key), size, tuple(exemplars.get(key, ())))
                    for key, size in zip(keys, sizes, strict=True)
                )
            )
        return cls(tuple(nodes), tuple(map(tuple, parents)))

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(map(len, self.nodes))

    def children(self, level: int) -> list[list[int]]:
        """The children of every node of a level; for level L, those of the root, which are the coarsest nodes."""
        if level == len(self.nodes):
            return [list(range(len(self.nodes[-1])))]
        found: list[list[int]] = [[] for _ in self.nodes[level]]
        for child, parent in enumerate(self.parents[level - 1] if level else ()):
            found[parent].append(child)
        return found

    def nested(self) -> dict[str, Any]:
        """Nodes within nodes, as `d3.hierarchy` reads them: id, name, count, exemplars, children."""
        below: list[dict[str, Any]] = []
        for level, nodes in enumerate(self.nodes):
            made = []
            for node, children in zip(nodes, self.children(level), strict=True):
                entry: dict[str, Any] = {"id": node.id, "name": node.name, "count": node.count}
                entry |= {"exemplars": list(node.exemplars)} if node.exemplars else {}
                made.append(entry | ({"children": [below[child] for child in children]} if children else {}))
            below = made
        return {"id": ROOT, "name": ROOT, "count": sum(node.count for node in self.nodes[-1]), "children": below}

    @classmethod
    def of_nested(cls, root: Mapping[str, Any]) -> TreeOutline:
        """The outline of nodes within nodes. Without ids that name level and number, nodes are numbered in order."""
        depths: list[list[tuple[Mapping[str, Any], int]]] = [[(child, 0) for child in root.get("children", ())]]
        while any("children" in entry for entry, _ in depths[-1]):
            depths.append(
                [(child, place) for place, (entry, _) in enumerate(depths[-1]) for child in entry.get("children", ())]
            )
        if not depths[0]:
            raise ValueError("the tree has no nodes below its root")
        depths.reverse()  # fine → coarse
        for level, depth in enumerate(depths[1:], start=1):
            # A node of ours without children is empty, as its id shows; any other is a leaf.
            if any("children" not in entry and not str(entry.get("id")).startswith(f"{level}-") for entry, _ in depth):
                raise ValueError("all leaves must lie at the same depth, as those of a tree of prototypes do")
        orders = [_order(depth, level) for level, depth in enumerate(depths)]
        nodes, parents = [], []
        for level, (depth, order) in enumerate(zip(depths, orders, strict=True)):
            entries = [depth[place] for place in order]
            nodes.append(tuple(_node(entry, f"{level}-{number}") for number, (entry, _) in enumerate(entries)))
            if level + 1 < len(depths):
                above = {place: number for number, place in enumerate(orders[level + 1])}
                parents.append(tuple(above[parent] for _, parent in entries))
        return cls(tuple(nodes), tuple(parents))

    def build(self, features: Features, leaves: Tensor | npt.NDArray[np.integer]) -> PrototypeTree:
        """The tree of prototypes over features (N, D) whose leaves (N,) are known: a prototype is a mean direction.

        A node without images has the direction of all images.
        """
        rows, ids = UnitRows(features), torch.as_tensor(leaves).long()
        fault = rows.fault()
        if fault is not None:
            raise ValueError(fault)
        if len(ids) != len(rows):
            raise ValueError(f"leaves must name a leaf for each of the {len(rows)} rows of features, not {len(ids)}")
        parents = tuple(torch.tensor(level) for level in self.parents)
        prototypes = mean_directions(rows, ids, self.levels, parents)
        return PrototypeTree(prototypes, parents, ids, by_path=len(prototypes) > 1)


def _order(depth: Sequence[tuple[Mapping[str, Any], int]], level: int) -> list[int]:
    """The places of a level's nodes by number, if all of them have one, else as they are."""
    ids = {str(entry.get("id")): place for place, (entry, _) in enumerate(depth)}
    wanted = [f"{level}-{number}" for number in range(len(depth))]
    return [ids[one] for one in wanted] if ids.keys() == set(wanted) else list(range(len(depth)))


def _node(entry: Mapping[str, Any], key: str) -> Node:
    exemplars = tuple(str(file) for file in entry.get("exemplars", ()))
    return Node(key, str(entry.get("name", key)), int(entry.get("count", 0)), exemplars)
