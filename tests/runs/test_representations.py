"""The method and heads of a run, rebuilt from its folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from hirl.data import open_images
from hirl.data.views.normalisation import choose_normalisation
from hirl.evals import KNN, TreeAgreement
from hirl.features.extractor import extract_features
from hirl.features.preprocessing import Preprocessing
from hirl.methods import MoCoV2
from hirl.run import Run
from hirl.runs.checkpoint import load_checkpoint, save_checkpoint
from hirl.runs.representations import load_trained
from hirl.terminal.progress import no_progress

QUICK = KNN(ks=(5, 10))


class Mine(MoCoV2):
    """A method that is not part of hirl."""


def test_representations_are_what_training_would_make_of_the_images(runs: dict[str, Run], picture_files: Path) -> None:
    images = open_images(picture_files)
    for arm, count in (("hirl", 3), ("base", 1)):
        run = runs[arm]
        found = extract_features(
            load_trained(run), images, Preprocessing(16, choose_normalisation(images)), task="z", progress=no_progress
        ).rows
        assert found.shape == (144, count, 16)
        state = load_checkpoint(run.checkpoint_file)["joint"]
        network = load_trained(run)
        assert not network.training
        assert all(torch.equal(network.state_dict()[f"method.{name}"], state[f"method.{name}"]) for name in ("queue",))
        if arm == "hirl":
            assert network.tree is not None
            assert torch.equal(network.tree.leaves, run.tree.leaves)
            z0 = found[:, 0].double()
            head = {name: value.double() for name, value in state.items() if name.startswith("paths.heads.1.")}
            hidden = z0 @ head["paths.heads.1.0.weight"].T
            scale = (head["paths.heads.1.1.running_var"] + 1e-5).rsqrt() * head["paths.heads.1.1.weight"]
            hidden = (hidden - head["paths.heads.1.1.running_mean"]) * scale + head["paths.heads.1.1.bias"]
            z2 = hidden.relu() @ head["paths.heads.1.3.weight"].T + head["paths.heads.1.3.bias"]
            torch.testing.assert_close(found[:, 2].double(), z2, rtol=1e-4, atol=1e-5)


def test_a_method_of_the_users_is_never_imported_from_a_file(runs: dict[str, Run]) -> None:
    run = runs["hirl"]
    text = run.config_file.read_text().partition("\n")[2]  # without its checksum
    run.config_file.write_text(text.replace("hirl.methods.moco_v2.MoCoV2", f"{__name__}.Mine"))
    with pytest.raises(ValueError, match="which is not part of hirl: name"):
        run.evaluate("tree", device="cpu", quiet=True)
    run.evaluate(QUICK, device="cpu", quiet=True)  # which needs the encoder alone
    run.evaluate(TreeAgreement(sample=50), method=Mine, device="cpu", quiet=True)
    with pytest.raises(ValueError, match="not by MoCoV2"):
        load_trained(run, method=MoCoV2)
    with pytest.raises(ValueError, match=r"is not a (method|class)"):
        load_trained(run, method="os.path.join")
    with pytest.raises(ValueError, match=r"there is no method 'no\.such\.Method'"):
        load_trained(run, method="no.such.Method")


def test_the_plan_in_the_checkpoint_is_that_of_the_run(runs: dict[str, Run]) -> None:
    for run in runs.values():
        state = load_checkpoint(run.checkpoint_file)
        plan = {"epochs": 9, "steps_per_epoch": 7, "batch_size": 48, "image_size": 16, "channels": 3, "accumulate": 1}
        save_checkpoint(run.checkpoint_file, state | {"plan": plan})
        assert asdict(load_trained(run).method.plan) == plan


def test_a_checkpoint_that_does_not_fit_is_refused(runs: dict[str, Run]) -> None:
    run = runs["hirl"]
    state = load_checkpoint(run.checkpoint_file)
    del state["joint"]["method.queue"]
    save_checkpoint(run.checkpoint_file, state)
    with pytest.raises(ValueError, match="do not fit MoCoV2"):
        load_trained(run)
    run.checkpoint_file.unlink()
    with pytest.raises(ValueError, match=r"has no last\.ckpt"):
        load_trained(run)
