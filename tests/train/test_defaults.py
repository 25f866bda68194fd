"""Settings chosen for images and machine: a table of cases, and a run that is given nothing but a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from hirl.cli.main import main
from hirl.data import Shapes
from hirl.encoders.backbones import has_tokens
from hirl.hierarchy.settings import Hierarchy
from hirl.methods import DINO, SimSiam, SwAV
from hirl.methods.base import Method, Plan
from hirl.recipes import recipe_names
from hirl.run import Run
from hirl.train import report, resolve
from hirl.train.defaults import DEFAULT_METHOD, Sizes, choose, minutes, small_recipe
from hirl.train.machine import GB, Machine, read_machine, size_text, used_memory
from hirl.train.memory import Need, check_memory, estimate_need
from hirl.train.pretrain import pretrain
from hirl.train.recipe import recipe

from ..small_methods import METHODS

SMALL_RECIPES = [name.removeprefix("small/") for name in recipe_names() if name.startswith("small/")]
LAPTOP = Machine("cpu", 2, 16 * GB, 12 * GB)
SERVER = Machine("cpu", 32, 128 * GB, 100 * GB)
TINY = Machine("cpu", 1, 2 * GB, 1 * GB)
GPU = Machine("cuda", 8, 24 * GB, 23 * GB)
SMALL_GPU = Machine("cuda", 4, 6 * GB, 5 * GB)

# images, shorter side, machine → backbone, image size, batch, epochs
CASES = [
    (100, 480, LAPTOP, "resnet18", 96, 16, 200),
    (1_500, 240, LAPTOP, "resnet18", 64, 64, 100),
    (1_500, 240, SERVER, "resnet18", 96, 64, 100),
    (1_500, 64, SERVER, "resnet18", 64, 64, 100),
    (1_500, 28, SERVER, "resnet18", 28, 64, 100),
    (10_000, 32, LAPTOP, "resnet18", 32, 128, 32),
    (25_000, 500, LAPTOP, "resnet18", 64, 128, 18),
    (100_000, 500, LAPTOP, "resnet18", 32, 128, 10),
    (1_000_000, 500, LAPTOP, "resnet18", 32, 128, 2),
    (1_000_000, 500, SERVER, "resnet18", 32, 128, 10),
    (1_500, 240, TINY, "resnet18", 64, 64, 100),
    (1_500, 640, GPU, "resnet18", 224, 64, 100),
    (1_500, 100, GPU, "resnet18", 96, 64, 100),
    (1_000_000, 500, GPU, "resnet50", 224, 128, 50),
    (1_000_000, 500, SMALL_GPU, "resnet50", 224, 32, 50),
]


@pytest.mark.parametrize(("N", "side", "machine", "backbone", "image_size", "batch_size", "epochs"), CASES)
def test_choices(
    N: int, side: int, machine: Machine, backbone: str, image_size: int, batch_size: int, epochs: int
) -> None:
    chosen = choose(DEFAULT_METHOD, N, side, machine)
    assert (chosen.image_size, chosen.batch_size, chosen.epochs) == (image_size, batch_size, epochs)
    assert chosen.method.backbone == backbone
    assert chosen.weight == (1.0 if machine.device == "cuda" else recipe("small/moco_v2")["hierarchy"].weight)
    assert {"method", "backbone", "image_size", "batch_size", "epochs", "weight"} <= set(chosen.reasons)
    assert all(chosen.reasons.values())
    if machine.device == "cpu":
        assert chosen.method.arguments["backbone_args"]["channels"] == [32, 64, 128, 256]
        assert epochs == 2 or minutes(DEFAULT_METHOD, N, image_size, epochs, machine.cores) <= 60  # two: one per stage
    if machine.device == "cpu" and N <= 1_500:
        chosen.method.build(Plan(epochs, N // batch_size, batch_size, image_size))


def test_little_memory_makes_the_batch_smaller() -> None:
    small = choose(DEFAULT_METHOD, 50_000, 500, Machine("cpu", 64, 2 * GB, 2 * GB))
    assert (small.image_size, small.batch_size) == (96, 16)
    assert small.reasons["batch_size"] == "the largest that fits into memory"


@pytest.mark.parametrize("N", [4, 5, 17, 40])
def test_a_few_images_are_enough(N: int) -> None:
    chosen = choose(DEFAULT_METHOD, N, 300, LAPTOP)
    assert 4 <= chosen.batch_size <= N
    chosen.method.build(Plan(chosen.epochs, N // chosen.batch_size, chosen.batch_size, chosen.image_size))


@pytest.mark.parametrize("kind", METHODS.values())
@pytest.mark.parametrize("side", [20, 64, 300])
def test_every_method_builds_for_every_size(kind: type[Method], side: int) -> None:
    chosen = choose(kind, 300, side, SERVER)
    assert chosen.image_size <= max(side, 16)
    chosen.method.build(Plan(chosen.epochs, 300 // chosen.batch_size, chosen.batch_size, chosen.image_size))
    images = torch.rand(2, 3, chosen.image_size, chosen.image_size)
    assert chosen.method.eval().embed(images).shape == (2, chosen.method.dim)


def test_a_small_recipe_belongs_to_one_class_of_the_package() -> None:
    assert {small_recipe(kind) for kind in METHODS.values()} == {f"small/{name}" for name in SMALL_RECIPES}
    own = type("DINO", (DINO,), {"__module__": "dino"})  # a user's class in a file of the same name
    assert small_recipe(own) is None


@pytest.mark.parametrize("kind", METHODS.values())
@pytest.mark.parametrize(("N", "side"), [(300, 100), (30_000, 500)])
def test_every_method_has_settings_for_a_gpu(kind: type[Method], N: int, side: int) -> None:
    chosen = choose(kind, N, side, SMALL_GPU)
    assert chosen.image_size == (224 if has_tokens(chosen.method.backbone_outline) else min(224, side // 32 * 32))
    assert chosen.batch_size % 4 == 0
    assert chosen.method.views(chosen.image_size)


@pytest.mark.parametrize("machine", [LAPTOP, GPU])
@pytest.mark.parametrize("batch_size", [20, 21, 100])
def test_the_other_settings_suit_a_batch_of_any_size(batch_size: int, machine: Machine) -> None:
    chosen = choose(DEFAULT_METHOD, 10_000, 32, machine, Sizes(batch_size=batch_size))
    chosen.method.build(Plan(chosen.epochs, 10_000 // batch_size, batch_size, 32))


@pytest.mark.parametrize("machine", [LAPTOP, GPU])
@pytest.mark.parametrize("processes", [2, 3, 4, 5, 6, 7, 16])
def test_any_number_of_processes_can_share_a_batch(
    processes: int, machine: Machine, as_rank: Callable[..., None]
) -> None:
    chosen = choose(DEFAULT_METHOD, 10_000, 32, machine, Sizes(processes=processes))
    assert chosen.batch_size % processes == 0
    as_rank(0, of=processes)
    chosen.method.build(Plan(chosen.epochs, 10_000 // chosen.batch_size, chosen.batch_size, 32))


def test_what_is_given_stays() -> None:
    chosen = choose(DINO, 1_500, 240, LAPTOP, Sizes(epochs=7, image_size=48, batch_size=20))
    assert (chosen.epochs, chosen.image_size, chosen.batch_size) == (7, 48, 20)
    assert chosen.method.arguments["backbone_args"]["img_size"] == 48
    assert set(chosen.reasons) == {"backbone", "weight"}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Photos of several sizes, and one that cannot be read."""
    folder = tmp_path / "photos"
    folder.mkdir()
    shapes = Shapes(images=40, size=32, cache=False)
    for index in range(40):
        picture = Image.fromarray(shapes.read(index).permute(1, 2, 0).numpy())
        picture.resize((40 + index, 36)).save(folder / f"{index:02d}.png")
    (folder / "broken.jpg").write_bytes(b"")
    return folder


@pytest.mark.usefixtures("photos")
def test_a_folder_is_all_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "MEASURED_SECONDS", 0.0)
    line = ["pretrain", "photos/", "--encoder", "null", "--epochs", "3", "--accelerator", "cpu"]
    assert main(line) == 0
    printed = capsys.readouterr()
    assert "chosen for 41 images of about 36 px and a CPU" in printed.out
    assert "image_size  32 px" in printed.out
    assert "measured over" in printed.err
    assert "memory in use" in printed.err
    run = Run("runs/photos-mocov2-hirl-0")
    config = yaml.safe_load(run.config_file.read_text())
    assert (config["image_size"], config["batch_size"], config["hierarchy"]["start_epoch"]) == (32, 16, 1)
    assert config["method"]["init_args"]["queue_length"] == 64
    assert run.tree.levels == tuple(config["hierarchy"]["levels"])

    assert config["hierarchy"]["weight"] == recipe("small/moco_v2")["hierarchy"].weight

    # On a machine or with a version that would choose otherwise, the same command still means the same run.
    monkeypatch.setattr(resolve, "choose", None)
    config["hierarchy"]["weight"] = 0.125
    run.config_file.write_text(yaml.safe_dump(config))
    assert main(line) == 0
    assert "is finished" in capsys.readouterr().out


def test_a_method_that_is_only_named_gets_a_small_network(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"encoder": None, "epochs": 2, "accelerator": "cpu", "workers": 0}
    run = pretrain(photos, SwAV, out=tmp_path / "swav", **options)  # type: ignore[arg-type]
    assert run.config["method"]["init_args"]["backbone_args"]["img_size"] == 32
    assert run.config["hierarchy"]["assign"] == "step"
    assert run.config["hierarchy"]["weight"] == recipe("small/swav")["hierarchy"].weight
    stored = pretrain(photos, SwAV, Hierarchy(assign="stored"), out=tmp_path / "stored", **options)  # type: ignore[arg-type]
    assert stored.config["hierarchy"]["assign"] == "stored"
    assert "first tree" in capsys.readouterr().out
    line = ["pretrain", str(photos), "--method", "SimSiam", "--out", str(tmp_path / "simsiam"), "--hierarchy", "null"]
    assert main([*line, "--encoder", "null", "--epochs", "1", "--accelerator", "cpu", "--workers", "0"]) == 0
    assert Run(tmp_path / "simsiam").config["method"]["init_args"]["backbone"] == "resnet18"
    assert "first tree" not in capsys.readouterr().out


def test_a_method_with_arguments_is_taken_as_it_is(photos: Path, tmp_path: Path) -> None:
    method = SimSiam(backbone="resnet10t", dim=16, predictor_hidden=8)
    run = pretrain(photos, method, None, out=tmp_path / "run", epochs=1, image_size=32, accelerator="cpu", workers=0)
    assert run.config["batch_size"] == 41
    assert run.config["method"]["init_args"]["backbone"] == "resnet10t"


def test_a_chosen_batch_must_be_one_that_can_be_accumulated(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="accumulate is 3, but must divide the batch_size of 16"):
        pretrain(photos, encoder=None, accumulate=3, out=tmp_path / "run", accelerator="cpu")
    assert not (tmp_path / "run").exists()


# Memory


def test_memory_is_estimated_from_a_few_images_and_grows_with_the_batch() -> None:
    method = SimSiam(backbone="resnet10t", dim=32, predictor_hidden=8)
    plan = Plan(1, 1, 64, 32)
    method.build(plan)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    of: dict[str, Any] = {"N": 1000, "workers": 0}
    need = estimate_need(method, plan, images=64, device="cuda", **of)
    assert need is not None
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    # Slow and obvious: of every layer with weights, at least its input is stored.
    hooks = [
        layer.register_forward_pre_hook(lambda _, given: counts.append(given[0].numel() * 4))
        for layer in method.modules()
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear | torch.nn.BatchNorm2d)
    ]
    counts: list[int] = []
    method.train()([torch.rand(4, 3, 32, 32)] * 2, [None] * 2, 0)
    for hook in hooks:
        hook.remove()
    inputs = sum(counts) / 4
    assert inputs < need.per_image < 3 * inputs
    assert need.total == pytest.approx(need.fixed + 64 * need.per_image)
    cpu = estimate_need(method, plan, images=64, device="cpu", **of)
    assert cpu is not None
    assert cpu.fixed - need.fixed == pytest.approx(0.9 * GB)


def test_a_run_that_does_not_fit_is_refused_with_options_that_would() -> None:
    need = Need(fixed=1 * GB, per_image=0.1 * GB, images=256)
    assert check_memory(need, Machine("cpu", 2, 64 * GB, 40 * GB), batch_size=256, accumulate=1) is None
    warning = check_memory(need, Machine("cpu", 2, 64 * GB, 30 * GB), batch_size=256, accumulate=1)
    assert warning is not None
    with pytest.raises(ValueError, match=r"about 27 GB .* 16 GB are free: --batch_size 64, --accumulate 4") as refused:
        check_memory(need, Machine("cpu", 2, 16 * GB, 16 * GB), batch_size=256, accumulate=1)
    fits = Need(need.fixed, need.per_image, 64)
    assert fits.total < 16 * GB, refused
    with pytest.raises(ValueError, match="use a smaller --image_size or a smaller backbone"):
        check_memory(need, Machine("cpu", 2, 16 * GB, 1 * GB), batch_size=256, accumulate=1)


@pytest.mark.parametrize(("batch_size", "parts"), [(90, 1), (90, 3), (250, 2), (254, 1)])
def test_advised_parts_are_equal_and_fit(batch_size: int, parts: int) -> None:
    """Also where no power of two divides the batch."""
    need = Need(fixed=0, per_image=1 * GB, images=batch_size // parts)
    free = 10 * GB
    with pytest.raises(ValueError, match=r"--accumulate \d+") as refused:
        check_memory(need, Machine("cpu", 2, free, free), batch_size=batch_size, accumulate=parts)
    advised = int(str(refused.value).split("--accumulate ")[1].split(",")[0])
    assert batch_size % advised == 0
    assert advised % parts == 0
    assert batch_size // advised * need.per_image < free


def test_files_that_a_container_caches_are_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hirl.train.machine.CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("100000000\n")
    (tmp_path / "memory.current").write_text("90000000\n")
    assert read_machine("cpu").free == 10_000_000
    (tmp_path / "memory.stat").write_text("anon 15000000\nactive_file 5000000\ninactive_file 70000000\n")
    machine = read_machine("cpu")
    assert (machine.free, machine.memory) == (80_000_000, 100_000_000)
    (tmp_path / "memory.current").write_text("200000000\n")
    assert read_machine("cpu").free == 0


def test_a_run_is_refused_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "images.npz"
    np.savez(data, images=np.zeros((300, 32, 32, 3), dtype=np.uint8))
    monkeypatch.setattr("hirl.train.setup.read_machine", lambda _: Machine("cpu", 2, 2 * GB, int(0.9 * GB)))
    line = ["pretrain", str(data), "--method", "MoCoV2", "--method.backbone", "resnet10t", "--hierarchy", "null"]
    assert (
        main(
            [
                *line,
                "--method.queue_length",
                "512",
                "--epochs",
                "1",
                "--out",
                str(tmp_path / "run"),
                "--accelerator",
                "cpu",
            ]
        )
        == 2
    )
    assert "hirl: the run needs about" in capsys.readouterr().err
    assert list(Run(tmp_path / "run").metrics()) == []


def test_the_cores_are_those_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    for threads, cores in ((2, 2), (16, 8)):
        monkeypatch.setattr("torch.get_num_threads", lambda threads=threads: threads)
        assert read_machine("cpu").cores == cores


def test_the_machine_is_read() -> None:
    machine = read_machine("cpu")
    assert machine.device == "cpu"
    assert machine.cores >= 1
    assert 0 < machine.free <= machine.memory
    assert 50e6 < used_memory("cpu") <= machine.memory
    assert [size_text(count) for count in (5e6, 1.34e9, 23.4e9)] == ["5 MB", "1.3 GB", "23 GB"]
