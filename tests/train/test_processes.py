"""Any number of processes: each image has one owner in the bank; trees and reported losses are equal."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from hirl import Run
from hirl.encoders.backbones import make_backbone
from hirl.encoders.encoder_file import EncoderMetadata, save_encoder
from hirl.explore.embed import embed
from hirl.ranks import Ranks
from hirl.runs.checkpoint import load_checkpoint
from hirl.train import bank as bank_module
from hirl.train.bank import Bank

from ..forked import Forked, as_torchrun, wait_for_all

SCRIPT = Path(__file__).parent / "rank_of_a_bank.py"
N, UNREADABLE = 103, 7
IMAGES, LEFT_OUT = 250, 50  # per epoch of two steps
CONFIG: dict[str, Any] = {
    "method": {
        "class_path": "hirl.methods.MoCoV2",
        "init_args": {
            "backbone": "resnet10t",
            "backbone_args": {"channels": [8, 8, 16, 16]},
            "dim": 16,
            "queue_length": 100,
            "bn_splits": 2,
            "lr": 0.001,
        },
    },
    "hierarchy": {"levels": [12, 4], "negatives": 5, "start_epoch": 2},  # some images are in neither epoch before it
    "epochs": 4,
    "batch_size": 100,
    "accelerator": "cpu",
    "knn_every": 0,
}


@pytest.fixture(scope="module")
def banks(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What each process of groups of 1, 2 and 4 found."""
    found = {}
    for world in (1, 2, 4):
        folder = tmp_path_factory.mktemp(f"group{world}")
        wait_for_all([Forked(SCRIPT, str(rank), str(world), folder) for rank in range(world)])
        found[world] = [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(world)]
    return found


def test_every_image_has_exactly_one_owner_at_every_tree(banks: dict[int, list[dict[str, Any]]]) -> None:
    everyone = [index for index in range(N) if index != UNREADABLE]
    for ranks in banks.values():
        for owned in zip(*(rank["owned"] for rank in ranks), strict=True):
            assert sorted(torch.cat(owned).tolist()) == everyone


@pytest.mark.parametrize("world", [2, 4])
def test_several_processes_build_the_trees_of_one(world: int, banks: dict[int, list[dict[str, Any]]]) -> None:
    (alone,) = banks[1]
    for rank in banks[world]:
        for mine, expected in zip(rank["trees"], alone["trees"], strict=True):
            assert all(torch.equal(mine[name], expected[name]) for name in expected)


def test_a_checkpoint_holds_each_image_once(banks: dict[int, list[dict[str, Any]]]) -> None:
    (alone,) = banks[1]
    for ranks in banks.values():
        for rank in ranks:
            for name, expected in alone["state"].items():
                assert torch.equal(rank["state"][name], expected), name
                assert torch.equal(rank["continued"][name], expected), name


def test_an_image_without_exactly_one_owner_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, ranks = Bank(4, 2), Ranks(None)
    bank.collect(torch.arange(4), torch.ones(4, 2), 1)
    assert len(bank.owned_images(ranks)) == 4
    monkeypatch.setattr(Ranks, "sum", lambda _, tensor: 2 * tensor)  # as if another process owned the images too
    with pytest.raises(RuntimeError, match="8 images are owned by the 1 processes, but there are 4"):
        bank.owned_images(ranks)


def test_what_is_clustered_is_the_mean_over_epochs() -> None:
    """Against a slow loop over images; the last one has no new z⁰ in epoch 1 and keeps the earlier one."""
    ranks = Ranks(None)
    bank = Bank(5, 3, momentum=0.25)
    latest: dict[int, Tensor] = {}
    means: dict[int, Tensor] = {}
    for epoch in range(3):
        z0 = torch.randn(5, 3, generator=torch.Generator().manual_seed(epoch))
        images = range(4 if epoch == 1 else 5)
        bank.collect(torch.tensor(images), z0[images.start : images.stop], epoch + 1)
        latest |= {image: F.normalize(z0[image], dim=0) for image in images}
        for image, row in latest.items():
            means[image] = F.normalize(0.25 * means[image] + 0.75 * row, dim=0) if epoch else row
        index, clustered = bank.clustering_features(ranks)
        assert index.tolist() == [0, 1, 2, 3, 4]
        expected = torch.stack([means[image] for image in range(5)])
        torch.testing.assert_close(clustered.float(), expected, atol=2e-3, rtol=0)  # in half precision
        state, bank = bank.state_dict(ranks), Bank(5, 3, momentum=0.25)
        bank.load_state_dict(state, ranks)
    without = Bank(5, 3)
    without.load_state_dict(state, ranks)
    assert torch.equal(without.clustering_features(ranks)[1], state["features"])


def test_what_a_gpu_collects_is_stored_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that wait on their device end in the bits of those stored at once, also of an image that comes twice."""
    ranks, draw = Ranks(None), torch.Generator().manual_seed(0)
    batches = [(torch.randint(40, (8,), generator=draw), torch.randn(8, 3, generator=draw)) for _ in range(30)]
    found = []
    for every in (1, 7, 100):
        monkeypatch.setitem(bank_module.COPY_EVERY, "cpu", every)
        bank = Bank(50, 3)
        for step, (index, z0) in enumerate(batches):
            bank.collect(index, z0, step + 1)
        assert bool((bank.step_of == len(batches)).any()) is (every == 1)  # the last batch waits
        missing, state = bank.missing(ranks), bank.state_dict(ranks)
        assert missing
        found.append((state, bank.clustering_features(ranks)[0]))
    for state, index in found[1:]:
        assert torch.equal(index, found[0][1])
        assert all(torch.equal(state[name], value) for name, value in found[0][0].items())


def test_a_pass_replaces_what_waits_and_what_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(None)
    bank = Bank(4, 2)
    bank.collect(torch.arange(4), torch.ones(4, 2), 1)
    monkeypatch.setitem(bank_module.COPY_EVERY, "cpu", 20)
    bank.collect(torch.arange(4), torch.ones(4, 2), 2)
    bank.replace(torch.tensor([0, 1, 2]), torch.tensor([[1.0, 0.0]] * 3), 2, ranks)  # the last cannot be read any more
    state = bank.state_dict(ranks)
    assert state["features"].tolist() == [[1, 0]] * 3 + [[0, 0]]
    assert state["step_of"].tolist() == [2, 2, 2, -1]
    assert state["features"].data_ptr() == bank.features.data_ptr()  # one process makes no copy of N·D values


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Run]:
    """The same run on one process and on two."""
    folder = tmp_path_factory.mktemp("processes")
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, 1, 1, 3)) // 2
    noise = np.random.default_rng(1).integers(0, 128, (IMAGES, 16, 16, 3))
    np.savez(folder / "images.npz", images=(pixels + noise).astype(np.uint8))
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    line = ("hirl.cli.main", "pretrain", folder / "images.npz", "--config", folder / "config.yaml")
    alone = [Forked(*line, "--out", folder / "1")]
    wait_for_all([*alone, *(Forked(*line, "--out", folder / "2", env=variables) for variables in as_torchrun(2))])
    return {devices: Run(folder / str(devices)) for devices in (1, 2)}


def test_a_late_first_tree_is_that_of_one_process(trained: dict[int, Run]) -> None:
    """Features agree to what rounding makes of them in training; a leaf may change for an image between two."""
    trees = [[line for line in run.metrics() if "largest_node_1" in line] for run in trained.values()]
    assert len(trees[0]) == len(trees[1]) == 3  # of epochs 3 and 4, and of the finished run
    for one, two in zip(*trees, strict=True):
        for name in ("largest_node_0", "largest_node_1", "assignment_entropy"):
            assert two[name] == pytest.approx(one[name], abs=0.05)
    one, two = (load_checkpoint(run.checkpoint_file)["bank"] for run in trained.values())
    assert torch.equal(one["step_of"], two["step_of"])
    torch.testing.assert_close(two["features"], one["features"], rtol=0, atol=2e-2)
    assert float((trained[1].tree.leaves == trained[2].tree.leaves).float().mean()) > 0.95


def test_the_networks_are_those_of_one_process(trained: dict[int, Run]) -> None:
    one, two = (load_checkpoint(run.checkpoint_file)["joint"] for run in trained.values())
    for name, tensor in one.items():
        if isinstance(tensor, torch.Tensor):
            torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


def test_losses_are_those_of_the_batch_over_all_processes(trained: dict[int, Run]) -> None:
    one, two = ([line for line in run.metrics() if "loss_image" in line] for run in trained.values())
    assert len(one) == len(two) == 4  # epochs, the last two with a tree
    for name in ("loss_image", "loss_spd", "contrast_accuracy"):
        for epoch in range(2 if name == "loss_spd" else 0, 4):
            assert two[epoch][name] == pytest.approx(one[epoch][name], rel=1e-3, abs=1e-4), (epoch, name)


def test_the_final_tree_is_that_of_the_images_on_any_number_of_processes(trained: dict[int, Run]) -> None:
    for run in trained.values():
        arrays = embed(run, device="cpu", quiet=True)
        assert np.array_equal(arrays["path"], run.tree.image_paths.numpy())


def test_several_processes_adapt_by_default(tmp_path: Path) -> None:
    """Nothing is given but the images and the encoder to start from: what is chosen suits the processes."""
    torch.manual_seed(0)
    network: dict[str, Any] = {"channels": [8, 8, 16, 16]}
    metadata = EncoderMetadata("resnet10t", network, 16, (0.5,) * 3, (0.5,) * 3)
    save_encoder(tmp_path / "start.safetensors", make_backbone("resnet10t", **network).eval(), metadata)
    np.savez(tmp_path / "images.npz", images=np.random.default_rng(0).integers(0, 256, (80, 16, 16, 3), dtype=np.uint8))
    files = (tmp_path / "images.npz", "--encoder", tmp_path / "start.safetensors", "--out", tmp_path / "run")
    line = ("hirl.cli.main", "pretrain", *files, "--accelerator", "cpu", "--epochs", "2")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    wait_for_all([Forked(*line, env=variables | cache) for variables in as_torchrun(3)])
    run = Run(tmp_path / "run")
    assert run.finished
    assert run.config["batch_size"] % 3 == 0


POISONED = """
import os, torch
from hirl.methods import MoCoV2

class Poisoned(MoCoV2):
    def forward(self, views, masks, step):
        output = super().forward(views, masks, step)
        if step == 3 and os.environ["RANK"] == "1":
            output = type(output)(output.loss * torch.nan, output.z0, output.target_z0)
        return output
"""


def two_processes(folder: Path, config: dict[str, Any], out: Path, *options: str) -> list[tuple[int | None, str]]:
    """Exit code and errors of each of two processes, started as torchrun does."""
    np.savez(folder / "images.npz", images=np.random.default_rng(0).integers(0, 256, (200, 16, 16, 3), dtype=np.uint8))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    path = {"PYTHONPATH": os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))}
    files = (folder / "images.npz", "--config", folder / "config.yaml", "--out", out)
    processes = [
        Forked("hirl.cli.main", "pretrain", *files, *options, env=variables | path) for variables in as_torchrun(2)
    ]
    return [(process.wait(), process.errors) for process in processes]


def test_a_loss_that_is_not_finite_on_one_process_ends_both(tmp_path: Path) -> None:
    (tmp_path / "poisoned_method.py").write_text(POISONED)
    config = CONFIG | {"hierarchy": None, "epochs": 3}
    arguments = CONFIG["method"]["init_args"].items()
    options = [text for name, value in arguments for text in (f"--method.{name}", json.dumps(value).strip('"'))]
    found = two_processes(tmp_path, config, tmp_path / "run", "--method", "poisoned_method.Poisoned", *options)
    (code, errors), (other_code, others) = found
    assert (code, other_code) == (2, 2)
    assert errors.count("hirl: the loss is nan at step 3 (epoch 2)") == 1
    assert "the last good checkpoint is from step 2" in errors
    assert "hirl:" not in others
    assert "Traceback" not in errors + others
    listed = (tmp_path / "run" / "failed_batch.txt").read_text().splitlines()
    assert len(listed) == 50  # the other process's half of the batch


def test_a_folder_that_is_refused_ends_both_processes(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    (code, errors), (other_code, others) = two_processes(tmp_path, CONFIG, tmp_path / "run")
    assert (code, other_code) == (2, 2)
    assert errors.count("hirl: the folder") == 1
    assert "is not empty and not a run folder" in errors
    assert "hirl:" not in others
    assert "Traceback" not in errors + others
