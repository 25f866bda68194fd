"""`PrototypeTree` to and from numpy, networkx, Newick, linkage matrices and JSON for d3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from hirl.export.tree_outline import ROOT, TreeOutline
from hirl.hierarchy.rows import Features
from hirl.hierarchy.tree import PrototypeTree

if TYPE_CHECKING:
    import networkx


def to_numpy(tree: PrototypeTree) -> dict[str, np.ndarray]:
    """Everything in a tree, by the names it has in its file: `prototypes.0` …, `parents.0` …, `leaves` …"""
    return {name: tensor.cpu().numpy() for name, tensor in tree.tensors().items()}


def from_numpy(arrays: Mapping[str, np.ndarray]) -> PrototypeTree:
    return PrototypeTree.from_tensors({name: torch.as_tensor(np.asarray(array)) for name, array in arrays.items()})


def to_networkx(outline: TreeOutline) -> networkx.DiGraph[str]:
    """A directed graph from the root to the leaves; `name`, `count`, `level` and `exemplars` are attributes of nodes.

    Exemplars are one text with a line per file, since GraphML has no lists.
    """
    from networkx import DiGraph  # which torch brings

    graph: networkx.DiGraph[str] = DiGraph()
    top = len(outline.nodes)
    graph.add_node(ROOT, name=ROOT, count=sum(node.count for node in outline.nodes[-1]), level=top)
    for level in reversed(range(top)):
        for number, node in enumerate(outline.nodes[level]):
            attributes: dict[str, Any] = {"name": node.name, "count": node.count, "level": level}
            attributes |= {"exemplars": "\n".join(node.exemplars)} if node.exemplars else {}
            graph.add_node(node.id, **attributes)
            above = ROOT if level + 1 == top else outline.nodes[level + 1][outline.parents[level][number]].id
            graph.add_edge(above, node.id)
    return graph


def from_networkx(graph: networkx.DiGraph[str]) -> TreeOutline:
    """The outline of a directed tree whose leaves lie at one depth."""
    roots = [node for node, degree in graph.in_degree() if degree == 0]
    if len(roots) != 1 or graph.number_of_edges() != graph.number_of_nodes() - 1:
        raise ValueError(f"the graph is not a tree with one root: it has {len(roots)} roots")

    def entry(node: str) -> dict[str, Any]:
        found: dict[str, Any] = {"id": str(node)} | dict(graph.nodes[node])
        if "exemplars" in found:
            found["exemplars"] = str(found["exemplars"]).split("\n")
        children = [entry(child) for child in graph.successors(node)]
        return found | ({"children": children} if children else {})

    return TreeOutline.of_nested(entry(roots[0]))


def to_linkage(outline: TreeOutline) -> npt.NDArray[np.float64]:
    """(M_1 − 1, 4): the tree over its leaves as scipy's linkage matrix. The height of a merger is its level.

    `scipy.cluster.hierarchy.fcluster(matrix, level + 0.5, "distance")` gives the nodes of a level, and the first two
    columns are `children_` of scikit-learn's AgglomerativeClustering.
    """
    rows: list[tuple[float, float, float, float]] = []
    count = outline.levels[0]
    clusters: list[tuple[int, int] | None] = [(leaf, 1) for leaf in range(count)]  # number in scipy's count, leaves
    for level in range(1, len(outline.nodes) + 1):
        above: list[tuple[int, int] | None] = []
        for children in outline.children(level):
            parts = sorted(cluster for child in children if (cluster := clusters[child]) is not None)
            merged = parts[0] if parts else None
            for part in parts[1:]:
                assert merged is not None
                first, second = sorted((merged[0], part[0]))
                size = merged[1] + part[1]
                rows.append((first, second, level, size))
                merged = (count + len(rows) - 1, size)
            above.append(merged)
        clusters = above
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def from_linkage(matrix: npt.NDArray[np.floating], features: Features, levels: Sequence[int]) -> PrototypeTree:
    """The tree of scipy's linkage of features (N, D), cut into so many nodes per level, fine → coarse."""
    from scipy.cluster.hierarchy import fcluster, is_valid_linkage

    if not is_valid_linkage(matrix) or len(matrix) + 1 != len(features):
        raise ValueError(f"the matrix is not a linkage of the {len(features)} rows of features")
    cuts = []
    for count in levels:
        cut = fcluster(matrix, count, "maxclust")
        if len(np.unique(cut)) != count:
            raise ValueError(
                f"the linkage has no cut into {count} nodes, only into {len(np.unique(cut))}: change levels"
            )
        cuts.append(np.unique(cut, return_inverse=True)[1])
    parents = []
    for fine, coarse in pairwise(cuts):
        above = np.zeros(fine.max() + 1, dtype=np.int64)
        above[fine] = coarse
        parents.append(above.tolist())
    outline = TreeOutline.of_counts([np.bincount(cut).tolist() for cut in cuts], parents)
    return outline.build(features, cuts[0])
