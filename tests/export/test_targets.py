"""Every target's own loader gives the same features as torch: a CNN, a transformer, an adapted encoder, any batch."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import timm
import torch
import torchvision
import yaml
from PIL import Image
from timm.data import config as timm_data
from torch import Tensor, nn

from hirl import Run
from hirl.cli.main import main
from hirl.explore.kept_tree import tree_id
from hirl.export import export_encoder
from hirl.export.export_encoder import WRITERS
from hirl.export.network import PixelFormat
from hirl.export.timm_folder import crop_share
from hirl.features.open_encoder import open_encoder
from hirl.runs.representations import load_trained
from hirl.terminal.figures import format_figure

LARGEST = 1e-4


def pixels(count: int) -> Tensor:
    return torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))


def normalised(images: Tensor, run: Path) -> Tensor:
    _, about = Run(run).encoder_weights()
    mean, std = (torch.tensor(values)[:, None, None] for values in (about.mean, about.std))
    return (images / 255 - mean) / std


def expected(images: Tensor, run: Path, *, levels: bool = False) -> dict[str, Tensor]:
    """What the run's own parts give, in other ways than the export."""
    ready, opened = normalised(images, run), Run(run)
    with torch.inference_mode():
        found = {"features": opened.encoder(ready)}
        if not levels:
            return found
        z = load_trained(opened)(ready)  # (B, 1 + L, D)
    if opened.config["hierarchy"]["head_layers"]:
        found |= {f"z{level}": rows for level, rows in enumerate(z.unbind(1))}
    leaves = opened.tree.assign(z[:, 0])
    return found | {"path": opened.tree.path(leaves), "confidence": opened.tree.margins(z[:, 0], leaves)}


def check(found: dict[str, Any], want: dict[str, Tensor]) -> None:
    assert list(found) == list(want)
    for name, rows in want.items():
        given = np.asarray(found[name])
        assert given.shape == tuple(rows.shape)
        if name == "path":
            assert given.tolist() == rows.tolist()
        else:
            assert np.abs(given - rows.numpy()).max() <= LARGEST


def check_onnx(file: Path, run: Path, *, levels: bool) -> None:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    for count in (1, 7):
        found = dict(zip(names, session.run(None, {"images": pixels(count).numpy()}), strict=True))
        check(found, expected(pixels(count), run, levels=levels))
    about = json.loads(session.get_modelmeta().custom_metadata_map["hirl"])
    assert about["preprocessing"]["resize"] == 16
    assert about["outputs"] == names
    if levels:
        assert [len(level) for level in about["nodes"]] == [24, 6]
        assert about["nodes"][1][5] == "1-5"
        assert (found["confidence"] >= 0).all()


# A CNN with levels and an adapted encoder without are in the folders for the hub below: writing one takes seconds.
@pytest.mark.parametrize(("run", "levels"), [("cnn", False), ("vit", True), ("adapted", True)], indirect=["run"])
def test_onnx(run: Path, levels: bool, onnx_file: Callable[..., Path]) -> None:
    check_onnx(onnx_file(run, levels=levels), run, levels=levels)


@pytest.mark.parametrize("levels", [True, False], ids=["levels", "features"])
def test_torch_export(run: Path, levels: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, names = tmp_path / "encoder.pt2", tmp_path / "names.json"
    names.write_text(json.dumps({"tree": tree_id(Run(run).tree), "names": {"1-0": "animals"}}))
    more = ["--levels", "--names", str(names)] if levels else []
    assert main(["export", str(run), "--to", "torch-export", "--out", str(out), *more]) == 0
    assert "on random images, in batches of 1 and 7: differs from torch by" in capsys.readouterr().out
    extra = {"hirl.json": ""}
    program = torch.export.load(out, extra_files=extra).module()
    for count in (1, 7):
        check(program(pixels(count)), expected(pixels(count), run, levels=levels))
    about = json.loads(extra["hirl.json"])
    assert about["preprocessing"]["size"] == 16
    assert not levels or about["nodes"][1][:2] == ["animals", "1-1"]


def check_timm_folder(folder: Path, run: Path) -> None:
    encoder = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    config = timm_data.resolve_data_config(model=encoder)
    assert (config["input_size"], config["interpolation"], config["crop_pct"]) == ((3, 16, 16), "bilinear", 1.0)
    for count in (1, 7):
        with torch.inference_mode():
            found = {"features": encoder(normalised(pixels(count), run))}
        check(found, expected(pixels(count), run))


@pytest.mark.parametrize("kind", ["cnn", "vit"])
def test_timm(kind: str, trained_runs: dict[str, Path], vit_run: Path, tmp_path: Path) -> None:
    run = vit_run if kind == "vit" else trained_runs["hirl"]
    export_encoder(run, "timm", tmp_path / "encoder")
    check_timm_folder(tmp_path / "encoder", run)


def test_hugging_face(vit_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my encoder"
    export_encoder(vit_run, "huggingface", folder)
    check_timm_folder(folder, vit_run)
    _, front, card = (folder / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "timm"
    assert "DINO, HIRL, finished, epoch 2 of 2" in card
    assert "random weights" in card
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    assert processor["size"] == {"shortest_edge": 16}


def test_a_card_has_the_measured_figures_and_levels_a_graph(runs: dict[str, Run], tmp_path: Path) -> None:
    run, folder = runs["hirl"].folder, tmp_path / "encoder"
    accuracy = runs["hirl"].evaluate("knn", device="cpu")["knn"].headline
    export_encoder(run, "huggingface", folder, levels=True)
    card = (folder / "README.md").read_text()
    assert all(f"| {name} | {format_figure(figure)} |" in card for name, figure in accuracy.items())
    check_timm_folder(folder, run)
    check_onnx(folder / "onnx" / "model.onnx", run, levels=True)


def test_an_adapted_encoder_on_the_hub_loads_as_its_card_says(
    adapted_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "card"
    export_encoder(adapted_run, "huggingface", folder)
    assert not (folder / "config.json").exists()  # nobody takes it for a network of timm or transformers
    card = (folder / "README.md").read_text()
    assert "`resnet18`, frozen, with an adapter: images of 16 pixels to 16 features" in card
    check_onnx(folder / "onnx" / "model.onnx", adapted_run, levels=False)
    picture = pixels(1)[0]
    Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / "photo.jpg", format="png")
    monkeypatch.chdir(folder)
    loaded: dict[str, Any] = {}
    exec(card.split("```python\n")[1].split("```")[0], loaded)
    want = expected(picture[None], adapted_run)
    check({"features": loaded["features"]}, want)
    again = open_encoder("encoder.safetensors")
    assert again.provenance == open_encoder(adapted_run).provenance
    assert again.provenance is not None
    with torch.inference_mode():
        check({"features": again.network(normalised(picture[None], adapted_run))}, want)


@pytest.mark.parametrize(("to", "name"), [("timm", "x"), ("torchvision", "x.pth")])
def test_an_adapted_encoder_has_no_place_elsewhere(to: Any, name: str, adapted_run: Path, tmp_path: Path) -> None:
    message = rf"{to} has no network for .* \(a frozen network with an adapter\): export it to onnx, torch-export or "
    with pytest.raises(ValueError, match=message):
        export_encoder(adapted_run, to, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", ["random:resnet18", "random:vit_tiny_patch16_224", "random:torchvision:resnet18"])
def test_torchvision(source: str, tmp_path: Path) -> None:
    out = tmp_path / "encoder.pth"
    args: dict[str, Any] = {"img_size": 32, "depth": 1} if "vit" in source else {}
    export_encoder(source, "torchvision", out, image_size=32, backbone_args=args)
    about = json.loads(out.with_suffix(".json").read_text())
    encoder: nn.Module = getattr(torchvision.models, about["network"])(**about["arguments"])
    encoder.set_submodule(about["classifier"], nn.Identity())
    encoder.load_state_dict(torch.load(out, weights_only=True))
    transforms = torchvision.transforms._presets.ImageClassification(**about["transforms"])
    own = open_encoder(source, backbone_args=args or None).network
    for count in (1, 7):
        images = transforms(pixels(count).repeat(1, 1, 2, 2))
        with torch.inference_mode():
            check({"features": encoder.eval()(images)}, {"features": own(images)})


class Unknown(nn.Module):
    """A network that timm and torchvision have no name for."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3))


@pytest.mark.parametrize(
    ("source", "to", "name", "options", "message"),
    [
        (Unknown(), "timm", "x", {}, r"timm has no network .* \(Unknown\): export it to onnx, torch-export or hugging"),
        (Unknown(), "torchvision", "x.pth", {}, "torchvision has no network .*: export it to onnx, torch-export or"),
        (Unknown(), "onnx", "x.onnx", {"levels": True}, "Unknown has no levels: only a run"),
        ("random:resnet10t", "onnx", "x.onnx", {"encoder": "resnet18"}, "random:resnet10t is itself an encoder"),
        (
            "resnet10t",
            "timm",
            "x",
            {"levels": True},
            "timm holds an encoder alone: export levels to onnx, torch-export",
        ),
        ("random:resnet10t", "onnx", "x.pth", {}, r"an export to onnx is a file named \*.onnx"),
        ("random:resnet10t", "tensorrt", "x", {}, "there is no target 'tensorrt': choose one of onnx"),
        ("random:vit_tiny_patch16_224", "timm", "x", {"image_size": 50}, "cannot take images of 50 × 50 pixels"),
    ],
)
def test_mistakes(source: Any, to: Any, name: str, options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        export_encoder(source, to, tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", WRITERS)
def test_nothing_is_replaced_without_overwrite(to: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"x{WRITERS[to].suffix}"
    line = ["export", "random:resnet18", "--image_size", "32", "--to", to, "--out"]
    (tmp_path / "empty").mkdir()
    assert main([*line, str(tmp_path / "empty" / name)]) == 0
    written = [path.name for path in (tmp_path / "empty").iterdir()]
    assert name in written
    for existing in written:
        folder = tmp_path / f"with {existing}"
        folder.mkdir()
        (folder / existing).write_text("precious")
        assert main([*line, str(folder / name)]) == 2
        assert f"{str(folder / existing)!r} exists already: name another --out" in capsys.readouterr().err
        assert list(folder.iterdir()) == [folder / existing]
        assert (folder / existing).read_text() == "precious"


def test_a_folder_is_replaced_only_if_it_holds_such_an_export(tmp_path: Path) -> None:
    out: Path = tmp_path / "models"
    out.mkdir()
    (out / "config.json").write_text("{}")
    export: dict[str, Any] = {"source": "random:resnet10t", "out": out, "image_size": 32}
    with pytest.raises(ValueError, match=r"models' exists already: name another one, or give overwrite=True"):
        export_encoder(**export, to="timm")
    (out / "onnx").mkdir()  # part of another target
    (out / "onnx" / "mine.txt").write_text("precious")
    held: tuple[tuple[Any, str], ...] = (("timm", "onnx"), ("huggingface", "onnx/mine.txt"))
    for to, other in held:
        with pytest.raises(
            ValueError, match=rf"other content, such as '{other}', but must be empty or hold an export to"
        ):
            export_encoder(**export, to=to, overwrite=True)
    assert (out / "onnx" / "mine.txt").read_text() == "precious"
    shutil.rmtree(out / "onnx")
    export_encoder(**export, to="timm", overwrite=True)
    assert json.loads((out / "config.json").read_text())["architecture"] == "resnet10t"


def test_a_target_names_what_it_writes_beside_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(WRITERS, "onnx", WRITERS["onnx"]._replace(beside=".data"))
    (tmp_path / "x.data").touch()
    assert main(["export", "random:resnet10t", "--to", "onnx", "--out", str(tmp_path / "x.onnx")]) == 2
    assert f"{str(tmp_path / 'x.data')!r} exists already" in capsys.readouterr().err


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hirl.export.onnx_file.find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ValueError, match=r"ONNX needs onnxscript, not installed here: pip install 'hirl\[export\]'"):
        export_encoder(Unknown(), "onnx", tmp_path / "x.onnx", image_size=8)
    assert list(tmp_path.iterdir()) == []


def test_any_module_is_exported(tmp_path: Path) -> None:
    out = tmp_path / "x.pt2"
    export_encoder(Unknown(), "torch-export", out, image_size=8, mean=(0.0,) * 3, std=(1.0,) * 3)
    images = torch.full((2, 3, 8, 8), 51, dtype=torch.uint8)
    torch.testing.assert_close(torch.export.load(out).module()(images)["features"], torch.full((2, 3), 0.2))


def test_timm_resizes_to_the_same_side() -> None:
    for size in range(96, 600):
        resize = round(size * 256 / 224)
        assert math.floor(size / crop_share(PixelFormat(size, resize, 3, (0.5,), (0.5,)))) == resize
