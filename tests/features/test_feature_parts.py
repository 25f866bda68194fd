"""Folders of features in parts, which several processes begin together."""

from __future__ import annotations

from pathlib import Path

import pytest

from hirl.features.feature_parts import MANIFEST, make_parts


def test_a_folder_that_another_process_is_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f".{MANIFEST}.begun.part").touch()
    made = make_parts(tmp_path, 10, 2, {"encoder": "a"})
    manifest, content = tmp_path / MANIFEST, (tmp_path / MANIFEST).read_bytes()
    manifest.unlink()
    listing = Path.iterdir

    def meanwhile(folder: Path) -> list[Path]:
        manifest.write_bytes(content)
        return list(listing(folder))

    monkeypatch.setattr(Path, "iterdir", meanwhile)
    assert make_parts(tmp_path, 10, 2, {"encoder": "a"}) == made


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="is not empty and holds no parts of features: name another one"):
        make_parts(tmp_path, 10, 2, {"encoder": "a"})
