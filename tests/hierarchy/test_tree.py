"""The prototype tree: what it checks, what it answers, and its file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from hirl import PrototypeTree, hierarchical_kmeans, spd_loss

MakeTree = Callable[..., PrototypeTree]


@pytest.fixture
def tree() -> PrototypeTree:
    """Five leaves, three nodes of which the last has no children, two roots; seven images, none at leaf 3."""
    return PrototypeTree(
        prototypes=tuple(F.normalize(torch.randn(size, 4), dim=1) for size in (5, 3, 2)),
        parents=(torch.tensor([0, 0, 1, 1, 0]), torch.tensor([1, 0, 1])),
        leaves=torch.tensor([4, 0, 0, 2, 1, 4, 4]),
    )


def test_it_answers_what_lies_where(tree: PrototypeTree) -> None:
    assert tree.levels == (5, 3, 2)
    assert tree.dim == 4
    assert tree.path(2).tolist() == [2, 1, 0]
    assert tree.path(torch.tensor([[4, 3]])).tolist() == [[[4, 0, 1], [3, 1, 0]]]
    assert tree.path(tree.leaves).shape == (7, 3)
    assert tree.images(0, 4).tolist() == [0, 5, 6]
    assert tree.images(1, 0).tolist() == [0, 1, 2, 4, 5, 6]
    assert tree.images(2, 0).tolist() == [3]
    assert tree.images(0, 3).tolist() == []
    assert tree.children(1, 0).tolist() == [0, 1, 4]
    assert tree.children(1, 2).tolist() == []
    assert tree.children(2, 1).tolist() == [0, 2]
    assert tree.children(0, 1).tolist() == []
    assert [tree.sizes(level).tolist() for level in range(3)] == [[2, 1, 1, 0, 3], [6, 1, 0], [1, 6]]
    assert repr(tree) == "PrototypeTree(levels=(5, 3, 2), dim=4, images=7)"


def test_a_notebook_shows_a_summary(tree: PrototypeTree) -> None:
    page = tree._repr_html_()
    assert "<td>0</td><td>5</td><td>1</td><td>3</td>" in page  # level, nodes, median and largest number of images
    assert page.index("2-1: 6 images") < page.index("1-0: 6 images") < page.index("0-4: 3 images")  # largest first
    assert page.count("<ul>") == page.count("</ul>")
    wide = PrototypeTree((F.normalize(torch.randn(40, 4), dim=1),), (), torch.arange(40))
    assert "and 28 more" in wide._repr_html_()


def test_images_without_a_leaf_are_in_no_node(tree: PrototypeTree, tmp_path: Path) -> None:
    """As images that could not be read."""
    leaves = tree.leaves.clone()
    leaves[[1, 5]] = -1
    PrototypeTree(tree.prototypes, tree.parents, leaves).save(tmp_path / "tree.safetensors")
    loaded = PrototypeTree.load(tmp_path / "tree.safetensors")
    assert torch.equal(loaded.leaves, leaves)
    assert loaded.count == 5
    assert loaded.image_paths[[0, 1, 5]].tolist() == [[4, 0, 1], [-1, -1, -1], [-1, -1, -1]]
    assert [loaded.sizes(level).tolist() for level in range(3)] == [[1, 1, 1, 0, 2], [4, 1, 0], [1, 4]]
    assert loaded.images(0, 4).tolist() == [0, 6]
    assert loaded.images(2, 1).tolist() == [0, 2, 4, 6]
    assert repr(loaded) == "PrototypeTree(levels=(5, 3, 2), dim=4, images=5)"
    with pytest.raises(
        ValueError, match="there is no leaf -1, which stands for an image not in the tree: use image_paths"
    ):
        loaded.path(loaded.leaves)


def test_new_images_get_the_leaf_of_largest_cosine(tree: PrototypeTree) -> None:
    features = torch.randn(50, 4) * torch.rand(50, 1) * 100
    expected = F.cosine_similarity(features[:, None], tree.prototypes[0][None], dim=-1).argmax(1)
    assert torch.equal(tree.assign(features), expected)
    assert torch.equal(tree.assign(features.numpy()), expected)
    assert tree.assign(features[:0]).shape == (0,)


def test_it_is_frozen(tree: PrototypeTree) -> None:
    with pytest.raises(FrozenInstanceError):
        tree.leaves = torch.zeros(1)  # type: ignore[misc]


UNIT = F.normalize(torch.ones(3, 4), dim=1)
IDS = torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    ("prototypes", "parents", "leaves", "message"),
    [
        ((), (), IDS, "at least one level"),
        ((UNIT, UNIT), (), IDS, "2 levels .* 1 tensors of parents, not 0"),
        ((UNIT,), (IDS,), IDS, "1 levels .* 0 tensors of parents, not 1"),
        ((UNIT, UNIT[:, :2]), (IDS,), IDS, r"prototypes\[1\] has 2 columns.*has 4"),
        ((UNIT * 2,), (), IDS, r"prototypes\[0\].*unit length.*row 0 has length 2"),
        ((torch.full((3, 4), torch.nan),), (), IDS, r"unit length.*row 0 has length nan"),
        ((UNIT[0],), (), IDS, r"shape \(M, D\)"),
        ((UNIT[:0],), (), IDS, r"shape \(M, D\)"),
        ((IDS[:, None],), (), IDS, r"float tensor"),
        ((UNIT, UNIT), (IDS[:2],), IDS, r"parents\[0\].*each of the 3 nodes.*not 2"),
        ((UNIT, UNIT[:1]), (IDS,), IDS, r"parents\[0\]\[1\] is 1, but there are 1 nodes"),
        ((UNIT, UNIT), (IDS.float(),), IDS, r"parents\[0\].*int64"),
        ((UNIT,), (), IDS - 2, r"leaves\[0\] is -2"),
        ((UNIT,), (), IDS * 3, r"leaves\[1\] is 3, but there are 3"),
        ((UNIT,), (), IDS[None], r"leaves.*one dimension"),
    ],
)
def test_what_is_no_tree_is_named(
    prototypes: tuple[Tensor, ...], parents: tuple[Tensor, ...], leaves: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PrototypeTree(prototypes=prototypes, parents=parents, leaves=leaves)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda tree: tree.images(3, 0), "no level 3.*0 .finest. to 2"),
        (lambda tree: tree.images(-1, 0), "no level -1"),
        (lambda tree: tree.children(1, 3), "level 1 has no node 3: it has 3"),
        (lambda tree: tree.sizes(9), "no level 9"),
        (lambda tree: tree.path(5), "no leaf 5"),
        (lambda tree: tree.path(-1), "no leaf -1"),
        (lambda tree: tree.path(torch.tensor([0, 7])), "no leaf 7"),
        (lambda tree: tree.path(torch.tensor([0, -2])), "no leaf -2"),
        (lambda tree: tree.assign(torch.randn(3, 5)), "5 columns.*4"),
        (lambda tree: tree.assign(torch.zeros(3, 4)), "row 0 of features has length 0"),
    ],
)
def test_what_is_not_in_the_tree_is_named(
    tree: PrototypeTree, ask: Callable[[PrototypeTree], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ask(tree)


def test_save_and_load(tree: PrototypeTree, tmp_path: Path) -> None:
    path = tmp_path / "tree.safetensors"
    tree.save(path)
    loaded = PrototypeTree.load(path)
    for name, tensor in tree.tensors().items():
        assert torch.equal(loaded.tensors()[name], tensor)
    assert [file.name for file in tmp_path.iterdir()] == ["tree.safetensors"]


def test_trees_have_one_ending_and_their_loss_one_tensor(tree: PrototypeTree, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.txt', but must end in \.safetensors"):
        tree.save(tmp_path / "x.txt")
    with pytest.raises(ValueError, match=r"z is a list, but must be a float tensor of shape \(B, \d, \d+\)"):
        spd_loss([torch.ones(2, tree.dim)] * 2, tree, torch.zeros(2, dtype=torch.int64))  # type: ignore[arg-type]


def test_a_failed_save_leaves_the_old_file(
    tree: PrototypeTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tree.safetensors"
    tree.save(path)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="the disk or your quota is full"):
        tree.save(path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_truncated_or_foreign_file_is_named(tree: PrototypeTree, tmp_path: Path) -> None:
    path = tmp_path / "tree.safetensors"
    tree.save(path)
    content = path.read_bytes()
    for cut in (0, 4, 20, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(
            ValueError, match=r"tree\.safetensors.*not a prototype tree, or is cut short|tree\.safetensors' is damaged"
        ):
            PrototypeTree.load(path)
    path.write_text("not a tree")
    with pytest.raises(ValueError, match="not a prototype tree"):
        PrototypeTree.load(path)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="not a prototype tree: its format is None"):
        PrototypeTree.load(path)
    tensors = {name: tensor.contiguous() for name, tensor in tree.tensors().items()}
    save_file(tensors | {"leaves": torch.tensor([77])}, path, metadata={"format": "hirl prototype tree 1"})
    with pytest.raises(ValueError, match=r"not a valid prototype tree: leaves\[0\] is 77"):
        PrototypeTree.load(path)
    with pytest.raises(FileNotFoundError):
        PrototypeTree.load(tmp_path / "missing")
    with pytest.raises(ValueError, match="is a folder"):
        PrototypeTree.load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_to_and_half_precision_prototypes(dtype: torch.dtype) -> None:
    prototypes = F.normalize(torch.randn(40, 64), dim=1).to(dtype)
    tree = PrototypeTree(prototypes=(prototypes,), parents=(), leaves=torch.arange(40)).to("cpu")
    assert torch.equal(tree.assign(prototypes), tree.leaves)


def test_built_by_kmeans_it_agrees_with_itself() -> None:
    features = torch.randn(500, 8)
    tree = hierarchical_kmeans(features, (40, 8, 2))
    assert torch.equal(tree.assign(features), tree.leaves)
    assert all(int(tree.sizes(level).sum()) == 500 for level in range(3))


@pytest.mark.parametrize("by_path", [True, False])
def test_margins_equal_a_slow_loop(by_path: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    fine, coarse = (F.normalize(torch.randn(size, 5, generator=generator), dim=1) for size in (6, 3))
    parents, rows = torch.tensor([0, 0, 1, 1, 2, 2]), F.normalize(torch.randn(40, 5, generator=generator), dim=1)
    tree = PrototypeTree((fine, coarse), (parents,), torch.zeros(40, dtype=torch.int64), by_path=by_path)
    leaves = tree.assign(rows)
    found = tree.margins(rows, leaves)
    for row, leaf, margins in zip(rows, leaves.tolist(), found, strict=True):
        score = [
            float(row @ fine[k] + row @ coarse[parents[k]]) / 2 if by_path else float(row @ fine[k]) for k in range(6)
        ]
        others = [[k for k in range(6) if k != leaf], [k for k in range(6) if parents[k] != parents[leaf]]]
        assert margins.tolist() == pytest.approx(
            [score[leaf] - max(score[k] for k in other) for other in others], abs=1e-6
        )
    assert float(found.min()) >= 0
    assert bool((found[:, 1] >= found[:, 0]).all())
