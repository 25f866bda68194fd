"""The last blocks of a start train, and nothing else of it: with every method, killed and continued, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hirl import Hierarchy, Run, pretrain
from hirl.data import Shapes
from hirl.encoders.backbones import make_backbone, outline
from hirl.encoders.encoder_file import EncoderMetadata, save_encoder
from hirl.encoders.last_blocks import block_numbers
from hirl.features.open_encoder import open_encoder
from hirl.methods import MoCoV2
from hirl.methods.base import Plan
from hirl.train.loop import Loop
from hirl.train.unfreezing import LAST_RATE, LAYER_DECAY, Unfreezing

from ..small_methods import METHODS, NAMES, RESNET, small_arguments, vit

HALVES = (0.5, 0.5, 0.5)
SIZE = 16


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def images() -> Shapes:
    return Shapes(images=48, size=SIZE, cache=False)


def start_file(folder: Path, name: str = "MoCoV2") -> Path:
    """A network of the kind that the method takes, as if it were a strong one."""
    torch.manual_seed(0)
    shape = vit(SIZE) if "img_size" in small_arguments(name, size=SIZE)["backbone_args"] else RESNET
    network = make_backbone(shape["backbone"], **shape["backbone_args"])
    about = EncoderMetadata(shape["backbone"], shape["backbone_args"], SIZE, HALVES, HALVES)
    save_encoder(folder / "start.safetensors", network, about)
    return folder / "start.safetensors"


def options(folder: Path, name: str = "MoCoV2") -> dict[str, Any]:
    more = {"epochs": 2, "batch_size": 16, "workers": 0, "knn_every": 0, "unfreeze": 1, "out": folder / "run"}
    start = str(start_file(folder, name))
    return {"method": METHODS[name], "hierarchy": Hierarchy(levels=(8, 3)), "encoder": start, **more}


@pytest.mark.parametrize("name", NAMES)
def test_the_last_block_trains_and_nothing_else_of_the_start(name: str, images: Shapes, tmp_path: Path) -> None:
    given = options(tmp_path, name)
    run = pretrain(images, **given)
    before, after = open_encoder(given["encoder"]).network, open_encoder(run).network
    numbers = block_numbers(before)
    changed = {key for key, value in after.state_dict().items() if not torch.equal(value, before.state_dict()[key])}
    assert changed
    assert {numbers.get(key) for key in changed} == {max(numbers.values())}  # None for statistics of a batch norm
    assert run.config["hierarchy"]["start_epoch"] == 0
    assert run.tree.count == len(images)
    assert run.adaptation is not None
    assert run.start_file.is_file()


class Killed(BaseException):
    """Ends a run at once, as a kill does."""


def test_killed_and_continued_it_ends_in_the_same_bits(
    images: Shapes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Loop._step

    def killed(self: Loop, *arguments: Any) -> Any:
        if self.step == 4:  # in the second epoch, once the block has been trained
            raise Killed
        return step(self, *arguments)

    given = options(tmp_path) | {"checkpoint_minutes": 0.0}
    undisturbed = pretrain(images, **given | {"out": tmp_path / "undisturbed"})
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", killed)
        with pytest.raises(Killed):
            pretrain(images, **given)
    run = pretrain(images, **given)
    for file in ("encoder.safetensors", "tree.safetensors", "adaptation.json"):
        assert (run.folder / file).read_bytes() == (undisturbed.folder / file).read_bytes()


def test_blocks_train_after_the_heads_at_rates_that_fall_towards_the_stem() -> None:
    method = MoCoV2(**small_arguments("MoCoV2", bn_splits=1))
    plan = Plan(epochs=10, steps_per_epoch=3, batch_size=16, image_size=SIZE)
    method.build(plan)
    found = Unfreezing.of(method, 3, plan)
    groups = found.scaled(method.param_groups(method))
    rates = sorted(group["lr_scale"] for group in groups)
    assert rates == pytest.approx([LAST_RATE * LAYER_DECAY**behind for behind in (2, 1, 0)] + [1.0])
    trained = {weight for group in groups for weight in group["params"]}
    assert trained == {weight for weight in method.parameters() if weight.requires_grad}
    for step, heads_alone in ((2, True), (3, False)):
        for weight in trained:
            weight.grad = torch.ones_like(weight)
        found.before_update(step)
        assert {weight for weight in trained if weight.grad is None} == (set(found.scales) if heads_alone else set())
    norms = [layer for copy in method.encoder_copies for layer in copy.modules() if isinstance(layer, _BatchNorm)]
    assert not any(layer.training for layer in method.train().encoder_copies[0].layer1.modules())  # type: ignore[union-attr]
    assert norms
    assert not any(layer.training for layer in norms)
    assert method.encoder.layer4.training  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("network", "blocks", "last"),
    [
        ("tf_efficientnet_lite0", 16, {"blocks", "conv_head", "bn2"}),
        ("resnet50", 16, {"layer4"}),
        ("vit_small_patch16_224", 12, {"blocks", "norm"}),
        ("convnext_atto", 12, {"stages", "head"}),
    ],
)
def test_what_follows_the_last_block_belongs_to_it(network: str, blocks: int, last: set[str]) -> None:
    numbers = block_numbers(outline(network))
    assert max(numbers.values()) == blocks
    assert {name.split(".")[0] for name, number in numbers.items() if number == blocks} == last


def test_what_cannot_be_unfrozen_is_one_sentence(images: Shapes, tmp_path: Path) -> None:
    given = options(tmp_path)
    adapter = RESNET["backbone_args"] | {"adapter": 8}
    for change, sentence in (
        ({"unfreeze": 5}, "unfreeze is 5, but must be at most the 4 blocks of resnet10t, or all"),
        ({"unfreeze": -1}, "unfreeze is -1, but must be a number of blocks, 0 for none, or all"),
        ({"encoder": None}, "unfreeze is 1, but must be 0 without an --encoder to start from"),
        (
            {"method": MoCoV2(**small_arguments("MoCoV2") | {"backbone_args": adapter})},
            "unfreeze is 1, but must be 0 with an adapter, whose encoder stays frozen",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            pretrain(images, **given | change)
    assert not (tmp_path / "run").exists()


def test_a_run_from_before_there_was_the_option_is_still_opened(images: Shapes, tmp_path: Path) -> None:
    run = pretrain(images, **options(tmp_path) | {"unfreeze": "all", "hierarchy": None, "epochs": 1})
    assert run.config["unfreeze"] == "all"
    lines = run.config_file.read_text().splitlines(keepends=True)[1:]  # without the checksum
    run.config_file.write_text("".join(line for line in lines if not line.startswith("unfreeze")))
    assert Run(run.folder).config["unfreeze"] == 0
