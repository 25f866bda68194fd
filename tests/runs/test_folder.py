"""The run folder's configuration: refused in one sentence if it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hirl.cli.main import main
from hirl.run import Run
from hirl.runs.continuing import differences
from hirl.runs.folder import FORMAT, OPTIONS, folder_name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"epochs: [3", "is damaged: it is not a YAML file"),
        (b"\xff\xfe\x00", "is damaged: it is not a YAML file"),
        (b"", "is damaged: it does not hold the options of a run"),
        (b"- 3", "is damaged: it does not hold the options of a run"),
        (b"epochs: 3", "is damaged: it lacks format, data, method"),
        (b"seed: 2001-99-99", "is damaged: it is not a YAML file"),
    ],
)
def test_a_damaged_configuration_is_one_sentence(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        _ = Run(tmp_path).config
    assert main(["show", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert str(tmp_path / "config.yaml") in shown
    assert shown.count("\n") == 1


def test_a_folder_without_a_configuration_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a run folder: it has no config\.yaml"):
        _ = Run(tmp_path).config


@pytest.mark.parametrize("written", ["hirl run 0", 7, None])
def test_a_run_of_another_format_is_refused(
    written: object, runs: dict[str, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs["hirl"]
    text = run.config_file.read_text().partition("\n")[2]  # without its checksum
    run.config_file.write_text(text.replace(FORMAT, yaml.safe_dump(written).split("\n")[0], 1))
    for command in ("show", "evaluate", "tree"):
        assert main([command, str(run.folder)]) == 2
        shown = capsys.readouterr().err
        assert f"has the format {written!r}, but this version of hirl reads 'hirl run 2' only" in shown
        assert shown.count("\n") == 1


def test_a_notebook_shows_a_summary(tmp_path: Path) -> None:
    run = Run(tmp_path / "<b>")
    run.folder.mkdir()
    assert "is not a run folder" in repr(run)
    options = dict.fromkeys(OPTIONS) | {
        "format": FORMAT,
        "epochs": 3,
        "method": {"class_path": "hirl.methods.DINO", "init_args": {}},
    }
    run.config_file.write_text(yaml.safe_dump(options))
    run.report({"step": 4, "epoch": 2.0, "loss_image": 0.25})
    assert repr(run).endswith("<b>': DINO, baseline, unfinished, epoch 2 of 3)")
    page = run._repr_html_()
    assert "<td>loss_image</td><td>0.25</td>" in page
    assert "&lt;b&gt;" in page
    assert "/<b>" not in page


def test_differences_are_named() -> None:
    assert differences({"a": {"b": 1, "c": [1, 2]}}, {"a": {"b": 2, "c": (1, 2)}, "d": 3}) == [
        "a.b: 1 → 2",
        "d: None → 3",
    ]


def test_a_folder_may_be_named_after_any_images() -> None:
    assert [folder_name(name) for name in ("pets/", "a b/c d?.npz", "…")] == ["pets", "c-d-.npz", "images"]
