"""Checkpoints of other projects: each layout gives the features of the network it was made from, or one sentence."""

from __future__ import annotations

import json
import pickle
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hirl.encoders.checkpoints import read_checkpoint
from hirl.features.open_encoder import open_encoder

State = dict[str, Tensor]
RESNET: dict[str, Any] = {"layers": [1, 1, 1, 1], "channels": [8, 8, 16, 16]}
VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8}


def resnet(name: str = "resnet18") -> nn.Module:
    return _trained(timm.create_model(name, num_classes=0, **RESNET))


def vit(**more: Any) -> nn.Module:
    return _trained(timm.create_model("vit_tiny_patch16_224", num_classes=0, **VIT | more))


def _trained(network: nn.Module) -> nn.Module:
    """With statistics and gains that a new network does not have."""
    torch.manual_seed(1)
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point() and not name.endswith(("proj.weight", "qkv.weight")):
            tensor.add_(torch.rand_like(tensor) * 0.1)
    return network.eval()


def under(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def mlp(prefix: str, *places: int) -> State:
    return {f"{prefix}.{place}.{part}": torch.zeros(16) for place in places for part in ("weight", "bias")}


def moco_v2(network: nn.Module) -> Any:
    encoder = network.state_dict() | mlp("fc", 0, 2)
    state = under("encoder_q.", encoder) | under("encoder_k.", encoder)
    state |= {"queue": torch.zeros(8, 16), "queue_ptr": torch.zeros(1)}
    return {"epoch": 200, "arch": "resnet50", "state_dict": under("module.", state), "optimizer": {"state": {}}}


def moco_v3(network: nn.Module) -> Any:
    encoder = network.state_dict() | mlp("head", 0, 3, 6)
    state = under("base_encoder.", encoder) | under("momentum_encoder.", encoder) | mlp("predictor", 0, 3)
    return {"epoch": 300, "arch": "vit_base", "state_dict": under("module.", state), "scaler": {}}


def simsiam(network: nn.Module) -> Any:
    state = under("encoder.", network.state_dict() | mlp("fc", 0, 1, 3, 4, 6)) | mlp("predictor", 0, 1, 3)
    return {"epoch": 100, "arch": "resnet50", "state_dict": under("module.", state)}


def swav(network: nn.Module) -> Any:
    state = network.state_dict() | mlp("projection_head", 0, 1, 3) | {"prototypes.weight": torch.zeros(30, 16)}
    return under("module.", state)


def dino(network: nn.Module) -> Any:
    head = mlp("head.mlp", 0, 2, 4) | {
        "head.last_layer.weight_g": torch.ones(9, 1),
        "head.last_layer.weight_v": torch.ones(9, 4),
    }
    other = under("backbone.", {name: tensor + 1 for name, tensor in network.state_dict().items()}) | head
    state = under("backbone.", network.state_dict()) | head
    loss = {"center": torch.zeros(1, 9)}
    return {"student": under("module.", other), "teacher": state, "args": Namespace(lr=0.1), "dino_loss": loss}


def ibot(network: nn.Module) -> Any:
    made = dino(network)
    made["teacher"]["head.last_layer2.weight_v"] = torch.ones(9, 4)
    made["teacher"]["backbone.masked_embed"] = torch.zeros(1, 64)
    return made


def dinov2(network: nn.Module) -> Any:
    """The class token has a position of its own in the project, and none in timm."""
    state = dict(network.state_dict()) | {"mask_token": torch.zeros(1, 64)}
    if "reg_token" in state:
        own = torch.rand(1, 1, 192)
        state["register_tokens"] = state.pop("reg_token")
        state["pos_embed"] = torch.cat([own, state["pos_embed"]], 1)
        state["cls_token"] = state["cls_token"] - own
        network.get_parameter("cls_token").data = state["cls_token"] + own  # rounded alike
    return state


def dinov2_training(network: nn.Module) -> Any:
    state = under("backbone.", dinov2(network)) | mlp("dino_head.mlp", 0, 2, 4) | mlp("ibot_head.mlp", 0, 2)
    return {"teacher": state}


def mae(network: nn.Module) -> Any:
    state = network.state_dict() | {"mask_token": torch.zeros(1, 1, 32), "decoder_pos_embed": torch.zeros(1, 5, 32)}
    state |= {"decoder_embed.weight": torch.zeros(32, 64), "decoder_blocks.0.norm1.weight": torch.zeros(32)}
    return {"model": state, "optimizer": {}, "epoch": 799, "args": Namespace(lr=0.1)}


def hirl_authors(network: nn.Module) -> Any:
    """HIRL wraps the method, whose `backbone` is a second name of its encoder."""
    encoder = network.state_dict() | mlp("fc", 0, 2)
    state = under("encoder_q.", encoder) | under("encoder_k.", encoder) | under("backbone.", encoder)
    state = under("model.", state | {"queue": torch.zeros(8, 16)}) | mlp("projections.0.layers", 0, 1)
    return {"model": under("module.", state), "optimizer": {}, "loss_scaler": {}, "args": {"lr": 0.03}, "epoch": 200}


def hirl_authors_baseline(network: nn.Module) -> Any:
    state = under("backbone.", network.state_dict()) | under("teacher.backbone.", network.state_dict())
    state |= under("student.module.backbone.", network.state_dict()) | {"center": torch.zeros(1, 9)}
    return {"model": under("module.", state), "epoch": 100}


def lightly(network: nn.Module) -> Any:
    """As in lightly's examples, with its own head."""
    from lightly.models.modules import MoCoProjectionHead

    module = nn.Module()
    children = [layer for name, layer in network.named_children() if name != "fc"]
    module.backbone = nn.Sequential(*children)
    module.projection_head = MoCoProjectionHead(16, 16, 8)
    state = dict(module.state_dict())
    state |= under("backbone_momentum.", module.backbone.state_dict())
    return {"state_dict": state, "epoch": 3, "pytorch-lightning_version": "2.4", "hyper_parameters": {"lr": 0.1}}


def solo_learn(network: nn.Module) -> Any:
    state = under("backbone.", network.state_dict()) | mlp("projector", 0, 2) | mlp("classifier", 0)
    state |= under("momentum_backbone.", network.state_dict()) | {"queue": torch.zeros(2, 8, 16)}
    return {"state_dict": state, "epoch": 400, "global_step": 9}


def stable_pretraining(network: nn.Module) -> Any:
    state = under("backbone.", network.state_dict()) | mlp("projector", 0, 2)
    return {"state_dict": state | mlp("callbacks_modules.linear_probe", 0), "epoch": 400}


def imgsim(network: nn.Module) -> Any:
    state = network.state_dict() | {"fc.weight": torch.zeros(768, 16), "fc.bias": torch.zeros(768)}
    return under("module.pre.", state)


def with_classifier(network: nn.Module) -> Any:
    return dict(network.state_dict()) | {"fc.weight": torch.zeros(10, 16), "fc.bias": torch.zeros(10)}


LAYOUTS: dict[str, tuple[Callable[[nn.Module], Any], Callable[[], nn.Module]]] = {
    "MoCo v2": (moco_v2, lambda: resnet("resnet50")),
    "MoCo v3": (moco_v3, vit),
    "SimSiam": (simsiam, resnet),
    "SwAV": (swav, resnet),
    "iBOT": (ibot, vit),
    "DINO": (dino, vit),
    "DINOv2": (dinov2, lambda: vit(init_values=1e-5)),
    "DINOv2, registers": (dinov2, lambda: vit(init_values=1e-5, reg_tokens=4, no_embed_class=True)),
    "DINOv2, training": (dinov2_training, lambda: vit(init_values=1e-5, reg_tokens=4, no_embed_class=True)),
    "MAE": (mae, vit),
    "HIRL's authors": (hirl_authors, resnet),
    "HIRL's authors, baseline": (hirl_authors_baseline, vit),
    "lightly": (lightly, resnet),
    "solo-learn": (solo_learn, resnet),
    "stable-pretraining": (stable_pretraining, vit),
    "imgsim": (imgsim, lambda: resnet("resnet50")),
    "timm or torchvision": (with_classifier, resnet),
}


def assert_same_features(source: Path, network: Callable[[Tensor], Tensor]) -> None:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(open_encoder(source).network(images), network(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("project", LAYOUTS)
def test_a_layout_gives_the_features_of_its_network(project: str, tmp_path: Path) -> None:
    lay_out, make = LAYOUTS[project]
    network = make()
    torch.save(lay_out(network), tmp_path / "checkpoint.pth")
    assert_same_features(tmp_path / "checkpoint.pth", network)
    provenance = open_encoder(tmp_path / "checkpoint.pth").provenance
    assert provenance is not None
    assert f"in the layout of {project.partition(',')[0]}" in provenance.source
    assert provenance.labels is (project == "timm or torchvision")


def test_torchvision_files(tmp_path: Path) -> None:
    import torchvision

    network = torchvision.models.resnet18(num_classes=5).eval()
    torch.save(network.state_dict(), tmp_path / "resnet18-f37072fd.pth")
    network.fc = nn.Identity()
    assert_same_features(tmp_path / "resnet18-f37072fd.pth", network)
    assert open_encoder(tmp_path / "resnet18-f37072fd.pth").description["backbone"] == "resnet18"


@pytest.mark.parametrize("kind", ["ViT", "Dinov2", "Dinov2WithRegisters", "ResNet"])
def test_hugging_face_folders(kind: str, tmp_path: Path) -> None:
    import transformers

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
    stages = {"embedding_size": 64, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    arguments = stages if kind == "ResNet" else small | ({"intermediate_size": 128} if kind == "ViT" else {})
    config = getattr(transformers, f"{kind}Config")(**arguments)
    classes = getattr(transformers, f"{kind}ForImageClassification")(config)
    network = _trained(getattr(classes, classes.base_model_prefix))
    classes.save_pretrained(tmp_path / "hub")
    prepared = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3, "size": {"shortest_edge": 256}, "resample": 3}
    (tmp_path / "hub" / "preprocessor_config.json").write_text(json.dumps(prepared | {"crop_size": {"height": 224}}))

    def features(images: Tensor) -> Tensor:
        output = network(images)
        return output.pooler_output.flatten(1) if kind == "ResNet" else output.last_hidden_state[:, 0]

    assert_same_features(tmp_path / "hub", features)
    form = open_encoder(tmp_path / "hub").format
    assert form is not None
    assert (form.size, form.mean, form.std, form.interpolation, form.crop) == (
        224, (0.5,) * 3, (0.25,) * 3, "bicubic", 0.875,
    )  # fmt: skip


def save_shapes(name: str, file: Path, *, without: str = "", prefix: str = "", **args: Any) -> State:
    """A file of a network's shapes, without the tensors whose names begin with `without`."""
    with torch.device("meta"):
        state = timm.create_model(name, num_classes=0, **args).state_dict()
    kept = {
        key: torch.zeros(()).expand(t.shape) for key, t in state.items() if not without or not key.startswith(without)
    }
    torch.save({"state_dict": under(prefix, kept)} if prefix else kept, file)
    return kept


@pytest.mark.parametrize(
    "name", ["resnet26", "resnet34", "resnet101", "resnet200", "vit_tiny_patch16_224", "vit_huge_patch14_224"]
)
def test_networks_are_told_by_their_shapes(name: str, tmp_path: Path) -> None:
    save_shapes(name, tmp_path / "weights.pth")
    assert read_checkpoint(tmp_path / "weights.pth").network == (name, {}, None)


def test_a_layout_tells_the_attention_heads(tmp_path: Path) -> None:
    args: dict[str, Any] = {"patch_size": 8, "num_heads": 12}
    save_shapes("vit_small_patch16_224", tmp_path / "weights.pth", prefix="module.base_encoder.", **args)
    found = read_checkpoint(tmp_path / "weights.pth").network
    assert found == ("vit_small_patch16_224", {"num_heads": 12, "patch_size": 8}, None)  # MoCo v3's ViT-S has 12 heads


@pytest.mark.parametrize(
    ("name", "without", "sentence"),
    [
        (
            "resnet18",
            "layer4.1.",
            "a ResNet of 2, 2, 2 and 1 blocks per stage, .* nearest, resnet18, has 2, 2, 2 and 2",
        ),
        ("resnet50", "layer4.2.", "3, 4, 6 and 2 blocks per stage, .* the nearest, resnet50, has 3, 4, 6 and 3"),
        ("resnet50", "layer4.", "3, 4, 6 and 0 blocks per stage, .* the nearest, resnet50, has 3, 4, 6 and 3"),
        (
            "vit_tiny_patch16_224",
            "blocks.11.",
            "width 192 with 11 blocks, .*, vit_tiny_patch16_224, has width 192 and 12",
        ),
        ("vit_tiny_patch16_224", "blocks.1", "width 192 with 9 blocks, .* has width 192 and 12 blocks"),
    ],
)
def test_a_file_without_its_last_blocks_is_refused(name: str, without: str, sentence: str, tmp_path: Path) -> None:
    """It would be a smaller network, which fits."""
    file = tmp_path / "weights.pth"
    save_shapes(name, file, without=without)
    with pytest.raises(
        ValueError, match=rf"weights.pth' holds .*{sentence}[^\n]*: restore the file if blocks are miss"
    ):
        open_encoder(file)
    with pytest.raises(ValueError, match=rf"do not fit {name}: \d+ missing \({without}"):
        open_encoder(file, backbone=name)
    with pytest.raises(ValueError, match=rf"do not fit {name}: \d+ missing \({without}"):
        open_encoder(name, weights=file)


def test_a_network_of_another_depth_or_width_can_be_named(tmp_path: Path) -> None:
    for name, args in {"resnet18": {"layers": [1, 2, 1, 1]}, "vit_tiny_patch16_224": VIT | {"embed_dim": 96}}.items():
        network = _trained(timm.create_model(name, num_classes=0, **args))
        torch.save(network.state_dict(), tmp_path / "weights.pth")
        with pytest.raises(
            ValueError, match=rf"if it is complete, name its network with backbone {name} and"
        ) as raised:
            open_encoder(tmp_path / "weights.pth")
        options = json.loads(str(raised.value).rpartition("backbone_args ")[2])
        if name == "vit_tiny_patch16_224":
            assert options.pop("num_heads") == 1  # of 64 columns each, which is most usual; this one has 3
        assert options == args
        opened = open_encoder(tmp_path / "weights.pth", backbone=name, backbone_args=args)
        assert all(torch.equal(opened.network.state_dict()[key], value) for key, value in network.state_dict().items())


def test_a_hugging_face_folder_says_how_deep_its_network_is(tmp_path: Path) -> None:
    import transformers

    small: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    }
    transformers.ViTModel(transformers.ViTConfig(**small, intermediate_size=128)).save_pretrained(tmp_path)
    open_encoder(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    kept = {name: tensor for name, tensor in state.items() if not name.startswith("encoder.layer.2.")}
    assert len(kept) < len(state)
    save_file(kept, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"holds 2 blocks, but must have the 3 that its config.json says: restore"):
        open_encoder(tmp_path)


class Trap:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("sprung"),))


@pytest.mark.parametrize("project", LAYOUTS)
def test_a_bad_file_of_a_layout_is_one_sentence(project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lay_out, make = LAYOUTS[project]
    content = lay_out(make())
    torch.save(content, "good.pth")
    Path("truncated.pth").write_bytes(Path("good.pth").read_bytes()[:-2000])
    torch.save(content | {"more": Trap()}, "object.pth")
    narrow = {"channels": [4, 4, 4, 4]}
    with pytest.raises(ValueError, match=r"^the weights in 'good.pth' do not fit resnet10t: [^\n]*$"):
        open_encoder("good.pth", backbone="resnet10t", backbone_args=narrow)
    with pytest.raises(ValueError, match=r"^'truncated.pth' is not a file of plain weights: torch did not [^\n]*$"):
        open_encoder("truncated.pth")
    with pytest.raises(ValueError, match=r"^'object.pth' is not a file of plain weights: it holds objects [^\n]*$"):
        open_encoder("object.pth")
    assert not Path("sprung").exists()


def test_a_bad_hugging_face_folder_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    configs: list[dict[str, Any]] = [{"hidden_size": 64, "num_attention_heads": 1}]
    configs += [{"num_attention_heads": 4}]  # as of MobileViT
    configs += [{"hidden_sizes": [32, 64], "num_attention_heads": [1, 2]}]  # as of SegFormer
    state = under("embeddings.patch_embeddings.projection.", {"weight": torch.zeros(64, 3, 8, 8)})
    save_file(state | {"encoder.layer.0.norm1.weight": torch.zeros(64)}, "model.safetensors")
    good = Path("model.safetensors").read_bytes()
    for config in configs:
        Path("config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match="holds weights but not the name of their network"):
            open_encoder(tmp_path)
    for content, sentence in {
        good[:-100]: r"model.safetensors' is not a safetensors file, or is truncated",
        pickle.dumps(Trap()): r"model.safetensors' is not a safetensors file, or is truncated",
    }.items():
        Path("model.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match=sentence):
            open_encoder(tmp_path)
    Path("model.safetensors").rename("pytorch_model.bin")
    with pytest.raises(ValueError, match=r"has a config.json, but no model.safetensors"):
        open_encoder(tmp_path)
    assert not Path("sprung").exists()


def test_what_cannot_be_loaded_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good = moco_v2(resnet())
    torch.save(good, "good.pth")
    Path("truncated.pth").write_bytes(Path("good.pth").read_bytes()[:-2000])
    torch.save(good | {"args": Trap()}, "object.pth")
    Path("pickle.pth").write_bytes(pickle.dumps(Trap()))
    state = good["state_dict"]
    lost = "module.encoder_q.layer2.0.conv1.weight"
    torch.save({"state_dict": {name: tensor for name, tensor in state.items() if name != lost}}, "missing.pth")
    torch.save({"state_dict": state | {"module.surprise.weight": torch.zeros(1)}}, "more.pth")
    torch.save({"state_dict": state | {"module.encoder_q.layer9.weight": torch.zeros(1)}}, "inside.pth")
    torch.save({"text": ["no", "tensors"]}, "text.pth")
    torch.save({"gate.weight": torch.zeros(2, 2)}, "unknown.pth")
    for file, sentence in {
        "truncated.pth": "is not a file of plain weights: torch did not save it, or it is truncated or damaged",
        "object.pth": "is not a file of plain weights: it holds objects besides tensors, and opening them would run",
        "pickle.pth": "is not a file of plain weights: it holds objects besides tensors, and opening them would run",
        "missing.pth": r"do not fit resnet18: .*1 missing \(layer2.0.conv1.weight\)",
        "more.pth": r"like a checkpoint of MoCo v2, but 1 of its tensors belong neither .* \(surprise.weight\)",
        "inside.pth": r"do not fit resnet18: 1 unknown \(layer9.weight\)",
        "text.pth": "does not hold the plain state dict of an encoder",
        "~no user/a.pth": "there is no run folder and no file .~no user/a.pth.",
        "unknown.pth": "holds weights but not the name of their network: name it with backbone",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            open_encoder(file)
    with pytest.raises(ValueError, match=r"the weights in 'good.pth' do not fit resnet50: .* missing"):
        open_encoder("good.pth", backbone="resnet50")
    assert not Path("sprung").exists()
