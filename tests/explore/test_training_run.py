"""Looking at a run while it is training: its checkpoint is read once, though it may be replaced at any time."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hirl import PrototypeTree, Run
from hirl.cli.main import main
from hirl.explore.collection import open_collection
from hirl.runs.checkpoint import load_checkpoint, save_checkpoint
from hirl.runs.representations import TREE, load_trained


@pytest.fixture
def training(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> Run:
    """An unfinished run whose training replaces the checkpoint whenever it has been read."""
    import hirl.runs.representations
    import hirl.runs.stored

    run = runs["hirl"]
    last = load_checkpoint(run.checkpoint_file)
    run.encoder_file.unlink()
    run.drop_reports_after(last["step"] - 1)
    last["step"] -= 2
    save_checkpoint(run.checkpoint_file, last)

    def load_and_train(path: Path) -> dict[str, Any]:
        state = load_checkpoint(path)
        further = state["joint"] | {
            name: value + 0.5 for name, value in state["joint"].items() if getattr(value, "dtype", None) == torch.float
        }
        tree = PrototypeTree.from_tensors(further[TREE])
        moved = F.normalize(tree.prototypes[0].flip(0) + 0.1, dim=1)
        further[TREE] = replace(tree, prototypes=(moved, *tree.prototypes[1:])).tensors()
        save_checkpoint(path, state | {"step": state["step"] + 1, "joint": further})
        return state

    for module in (hirl.runs.representations, hirl.runs.stored):
        monkeypatch.setattr(module, "load_checkpoint", load_and_train)
    return run


@pytest.mark.parametrize("command", ["tree", "embed", "search", "duplicates", "evaluate"])
@pytest.mark.filterwarnings("default::UserWarning")
def test_a_run_that_is_training_is_read_once(
    command: str, training: Run, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Features, z, tree and what is encoded later are of one checkpoint."""
    step = load_checkpoint(training.checkpoint_file)["step"]
    more = {"tree": ["--text"], "embed": ["--out", str(tmp_path / "z.npz")], "duplicates": []}
    more["search"] = [str(next(photos.glob("*/18.png")))]
    more["evaluate"] = ["tree", "knn", "--knn.ks", "10"]
    assert main([command, str(training.folder), *more[command], "--device", "cpu"]) == 0
    assert load_checkpoint(training.checkpoint_file)["step"] == step + 1
    assert capsys.readouterr().err.count("its last checkpoint is used") == 1


@pytest.mark.filterwarnings("ignore:.*its last checkpoint is used:UserWarning")
def test_the_tree_of_a_run_that_is_training_is_that_of_its_features(training: Run) -> None:
    kept = training.folder / "checkpoints" / "kept.ckpt"
    shutil.copy(training.checkpoint_file, kept)
    found = open_collection(training, device="cpu", quiet=True)
    expected = load_trained(Run(training.folder, checkpoint=kept))
    assert expected.tree is not None
    assert torch.equal(found.tree.prototypes[0], expected.tree.prototypes[0])
    weights = expected.method.encoder.state_dict()
    assert found.encoder is not None
    assert all(torch.equal(value, weights[name]) for name, value in found.encoder.network.state_dict().items())
    assert found.encoder.load_trained().sha256 == expected.sha256
