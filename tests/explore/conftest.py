"""A folder of images with hostile names, pages over it, and a browser to open them."""

from __future__ import annotations

import colorsys
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from hirl.explore.collection import Collection, open_collection

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = (
    "<script>window.pwned=1<\u2215script>.png",
    "<img src=x onerror=window.pwned=1>.png",
    "\"double\" 'single' `back` &amp; ${x}.png",
    "日本語 кошка ελ.png",
    "line\nbreak\ttab.png",
    "right\u202eto left.png",
    "%41 #hash ?query +plus.png",
    "=cmd|' calc'!A0,comma;semi.png",
    "%%DATA%%.png",
)
UNDECODABLE = b"byte\xff.png"
CLASSES = ("<b>bold<\u2215b>", 'cats "and" dogs', "звери")
PER_CLASS = 20


def colour_of(index: int) -> tuple[int, int, int]:
    """A colour of its own for every image of the folder."""
    r, g, b = colorsys.hsv_to_rgb(index * 0.381966 % 1, 0.55 + 0.4 * (index % 2), 0.5 + 0.2 * (index % 3))
    return round(255 * r), round(255 * g), round(255 * b)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three class folders of plain-coloured images; one file of the first is damaged."""
    root = tmp_path_factory.mktemp("photos & <more>") / "my photos"
    for number, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        names = [os.fsencode(f"{place:02d}.png") for place in range(PER_CLASS)]
        if number == 0:
            names[: len(HOSTILE)] = [os.fsencode(name) for name in HOSTILE]
            names[len(HOSTILE)] = UNDECODABLE
        for place, file in enumerate(names):
            path = os.path.join(os.fsencode(root / name), file)  # noqa: PTH118 - the names are bytes
            Image.new("RGB", (40, 32), colour_of(number * PER_CLASS + place)).save(os.fsdecode(path))
    (root / CLASSES[0] / "damaged.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing more")
    return root


@pytest.fixture(scope="session")
def features(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A row per image of the folder, in three directions by class; the damaged image has that of the one after it."""
    from hirl.data import open_images

    images = open_images(photos)
    assert images.labels is not None
    random = np.random.default_rng(0)
    rows = 2.5 * np.eye(3, 8)[images.labels[:, 0].numpy()] + random.standard_normal((len(images), 8))
    damaged = next(index for index in range(len(images)) if images.path(index).endswith("damaged.png"))
    rows[damaged] = rows[(damaged + 1) % len(rows)]
    path = tmp_path_factory.mktemp("features") / "features.npy"
    np.save(path, rows.astype(np.float32))
    return path


@pytest.fixture(scope="session")
def collection(photos: Path, features: Path) -> Collection:
    with pytest.warns(UserWarning, match=r"1 of the 61 images of .* cannot be read and are left out"):
        return open_collection(features, photos, levels=(12, 5, 3), quiet=True)


@pytest.fixture(scope="session")
def tree_page(collection: Collection, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hirl.explore.tree_page import write_tree_page

    folder = tmp_path_factory.mktemp("page") / "tree"
    write_tree_page(collection, folder, names={"2-0": "<i>first<\u2215i>"})
    return folder / "index.html"


def find_browser() -> str | None:
    names = (os.environ.get("HIRL_BROWSER", ""), "chromium", "chromium-browser", "google-chrome", "chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests of a process."""
    path = find_browser()
    if path is None:
        message = "there is no Chromium to open pages with: install chromium, or set HIRL_BROWSER to one"
        if os.environ.get("HIRL_BROWSER_REQUIRED") == "1":
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()
