"""Two processes that accumulate gradients take the clipped step of one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hirl.runs.checkpoint import load_checkpoint

from ..forked import Forked, as_torchrun, wait_for_all
from . import rank_of_a_clipped_run

CLIP, ARRANGEMENTS = 0.003, ((1, 1), (1, 2), (2, 2))  # processes, parts of the batch
FIRST, SECOND = "checkpoints/epoch-0001.ckpt", "checkpoints/epoch-0002.ckpt"  # without and with a tree


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Path]:
    threads = torch.get_num_threads()
    folders = {}
    for devices, accumulate in ARRANGEMENTS:
        folder = folders[devices, accumulate] = tmp_path_factory.mktemp("runs") / f"{devices}-{accumulate}"
        if devices == 1:
            rank_of_a_clipped_run.main(folder, devices, accumulate)
        else:
            line = ("tests.train.rank_of_a_clipped_run", folder, str(devices), str(accumulate))
            wait_for_all([Forked(*line, env=variables) for variables in as_torchrun(devices)])
    torch.set_num_threads(threads)
    return folders


def gradients(state: dict[str, Any]) -> dict[int, Tensor]:
    """Of the first step, as AdamW got them, by number of the parameter: its first average is a tenth of them."""
    return {number: entry["exp_avg"] * 10 for number, entry in state["optimiser"]["state"].items()}


def test_the_first_step_is_that_of_one_process(folders: dict[tuple[int, int], Path]) -> None:
    states = {arrangement: load_checkpoint(folder / FIRST) for arrangement, folder in folders.items()}
    expected = gradients(states[1, 1])
    norms = [float(gradient.norm()) for gradient in expected.values()]
    assert max(norms) < 1.001 * CLIP
    assert sum(norm > 0.999 * CLIP for norm in norms) > len(norms) // 2  # most were above the limit
    for arrangement in ARRANGEMENTS[1:]:
        found = gradients(states[arrangement])
        assert found.keys() == expected.keys()
        for number, gradient in expected.items():
            torch.testing.assert_close(found[number], gradient, rtol=1e-3, atol=1e-4 * CLIP)
        centre = "method.centre"
        torch.testing.assert_close(states[arrangement]["joint"][centre], states[1, 1]["joint"][centre])


def test_a_step_with_a_tree_is_that_of_one_process(folders: dict[tuple[int, int], Path]) -> None:
    """Of the same parts: the negative paths are drawn per part, and the heads' batch norm is over one."""
    one, two = (load_checkpoint(folders[arrangement] / SECOND) for arrangement in ARRANGEMENTS[1:])
    heads = [group["params"] for group in one["optimiser"]["param_groups"] if group["of"] == "heads"]
    numbers = [number for group in heads for number in group]
    found, expected = gradients(two), gradients(one)
    norms = [float(expected[number].norm()) for number in numbers]
    assert max(norms) == pytest.approx(CLIP, rel=1e-3)  # the heads are clipped as well
    for number in numbers:
        torch.testing.assert_close(found[number], expected[number], rtol=1e-2, atol=1e-3 * CLIP)
    statistics = [name for name in one["joint"] if name.startswith("paths.") and "running_" in name]
    assert statistics
    for name in statistics:  # over the batch of both processes
        torch.testing.assert_close(two["joint"][name], one["joint"][name], rtol=1e-3, atol=1e-5)
