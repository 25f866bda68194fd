"""Trees in other people's formats: there and back, with names, numbers of images and exemplars."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, is_valid_linkage, linkage
from sklearn.metrics import adjusted_rand_score

from hirl import PrototypeTree, Run, hierarchical_kmeans
from hirl.cli.main import main
from hirl.export.export_tree import WRITERS, export_tree
from hirl.export.newick import read_newick, write_newick
from hirl.export.tree_formats import from_linkage, from_networkx, from_numpy, to_linkage, to_networkx, to_numpy
from hirl.export.tree_outline import TreeOutline

Make = Callable[..., PrototypeTree]
NAMES = {"1-0": "it's (a) 'name'; with: [all], \"signs\"", "2-1": "звери", "0-3": "a\nb"}
FILES = {"0-2": ["a b,c.jpg", "d:e].png", "byte\udcff.png"], "2-0": ["x.jpg"]}


def outline(make: Make) -> TreeOutline:
    """Of a tree in which some nodes have no children and no images."""
    return TreeOutline.of_tree(make((12, 5, 3), 8), names=NAMES, exemplars=FILES)


def test_features_alone_have_no_tree_to_export(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds features alone: write their tree with hirl cluster"):
        export_tree(tmp_path / "features.npy", "newick", tmp_path / "tree.nwk")


def test_json_there_and_back(random_tree: Make) -> None:
    first = outline(random_tree)
    text = json.dumps(first.nested())
    assert TreeOutline.of_nested(json.loads(text)) == first
    assert json.loads(text)["count"] == 20


def test_newick_there_and_back(random_tree: Make) -> None:
    first, second = outline(random_tree), read_newick(write_newick(outline(random_tree)))
    assert second.parents == first.parents
    for ours, theirs in zip(sum(first.nodes, ()), sum(second.nodes, ()), strict=True):
        assert (theirs.name, theirs.count, theirs.exemplars) == (
            " ".join(ours.name.split()),
            ours.count,
            ours.exemplars,
        )


def test_newick_of_other_programs() -> None:
    found = read_newick("((a:0.1,'b c':2),(d,e)right:1.5)top;")
    assert [node.name for node in found.nodes[0]] == ["a", "b c", "d", "e"]
    assert found.parents == ((0, 0, 1, 1),)
    assert found.nodes[1][1].name == "right"
    for text, message in (("((a,b),c);", "same depth"), ("((a,b);", "do not match"), ("a;", "no nodes below")):
        with pytest.raises(ValueError, match=message):
            read_newick(text)


def test_networkx_and_graphml_there_and_back(random_tree: Make, tmp_path: Path) -> None:
    names, files = {"1-0": "cats & <dogs>"}, {"0-2": ["a.jpg", "b.jpg"]}
    first = TreeOutline.of_tree(random_tree((12, 5, 3), 8), names=names, exemplars=files)
    graph = to_networkx(first)
    assert networkx.is_arborescence(graph)
    assert from_networkx(graph) == first
    networkx.write_graphml(graph, tmp_path / "tree.graphml")
    assert from_networkx(networkx.read_graphml(tmp_path / "tree.graphml")) == first
    with pytest.raises(ValueError, match="not a tree with one root"):
        from_networkx(networkx.DiGraph([("a", "c"), ("b", "c")]))


def test_graphml_can_be_read_whatever_files_are_called(random_tree: Make, tmp_path: Path) -> None:
    tree, file = random_tree((12, 5, 3), 8), tmp_path / "tree.graphml"
    hostile = TreeOutline.of_tree(
        tree, names={"1-0": "bell\a"}, exemplars={"0-2": ["byte\udcff.png", "line\nbreak.png"]}
    )
    WRITERS["graphml"].write(hostile, tree, file)
    found = from_networkx(networkx.read_graphml(file))
    assert found.parents == hostile.parents
    assert found.nodes[1][0].name == "bell\\x07"
    assert found.nodes[0][2].exemplars == ("byte\\xff.png", "line\\nbreak.png")


def test_numpy_there_and_back() -> None:
    features = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    tree = hierarchical_kmeans(features, (12, 3), centre=True, components=4)
    again = from_numpy(to_numpy(tree))
    assert torch.equal(again.assign(features), tree.leaves)
    assert again.by_path


def test_scipy_cuts_the_linkage_into_the_levels() -> None:
    features = np.random.default_rng(0).normal(size=(80, 6)).astype(np.float32)
    tree = hierarchical_kmeans(features, (20, 7, 3))
    matrix = to_linkage(TreeOutline.of_tree(tree))
    assert is_valid_linkage(matrix)
    for level in range(3):
        assert adjusted_rand_score(fcluster(matrix, level + 0.5, "distance"), tree.paths[:, level]) == 1


def test_a_linkage_becomes_a_tree() -> None:
    centres = np.random.default_rng(0).normal(size=(6, 8))
    features = np.repeat(centres, 10, axis=0) + 0.05 * np.random.default_rng(1).normal(size=(60, 8))
    tree = from_linkage(linkage(features, "average"), features, levels=(6, 2))
    assert adjusted_rand_score(tree.leaves, np.repeat(np.arange(6), 10)) == 1
    assert torch.equal(tree.assign(features), tree.leaves)
    with pytest.raises(ValueError, match="not a linkage of the 59 rows"):
        from_linkage(linkage(features, "average"), features[:59], levels=(6, 2))


def test_an_outline_and_features_make_a_tree(random_tree: Make) -> None:
    features = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    tree = hierarchical_kmeans(features, (9, 3))
    again = TreeOutline.of_tree(tree).build(features, tree.leaves)
    assert torch.equal(again.image_paths, tree.image_paths)
    with pytest.raises(ValueError, match="a leaf for each of the 40 rows"):
        TreeOutline.of_tree(tree).build(features, tree.leaves[:5])
    del random_tree


@pytest.mark.parametrize(("to", "name"), [("json", "t.json"), ("newick", "t.nwk"), ("graphml", "t.graphml")])
def test_a_run_gives_files_for_its_nodes(to: str, name: str, runs: dict[str, Run], tmp_path: Path) -> None:
    out = tmp_path / name
    assert main(["export", str(runs["hirl"].folder), "--to", to, "--out", str(out)]) == 0
    found = {
        "json": lambda: TreeOutline.of_nested(json.loads(out.read_text())),
        "newick": lambda: read_newick(out.read_text()),
        "graphml": lambda: from_networkx(networkx.read_graphml(out)),
    }[to]()
    assert found.levels == (24, 6)
    assert sum(node.count for node in found.nodes[0]) == 144
    assert all(len(node.exemplars) == min(3, node.count) for node in found.nodes[1])


def test_a_tree_file_needs_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hierarchical_kmeans(torch.randn(40, 8), (9, 3)).save(tmp_path / "tree.safetensors")
    source = str(tmp_path / "tree.safetensors")
    assert main(["export", source, "--to", "linkage", "--out", str(tmp_path / "tree.npy")]) == 0
    assert np.load(tmp_path / "tree.npy").shape == (8, 4)
    assert main(["export", source, "--to", "numpy", "--out", str(tmp_path / "tree.npz")]) == 0
    assert from_numpy(np.load(tmp_path / "tree.npz")).levels == (9, 3)
    capsys.readouterr()
    assert main(["export", source, "--to", "newick", "--out", str(tmp_path / "tree.txt")]) == 2
    assert "a tree as newick is a file named *.nwk" in capsys.readouterr().err
    assert main(["export", source, "--to", "newick", "--out", str(tmp_path / "tree.nwk"), "--levels"]) == 2
    assert "--levels is for encoders" in capsys.readouterr().err
