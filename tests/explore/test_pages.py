"""The pages in a headless browser, over images whose names are hostile."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import hirl.explore
from hirl import PrototypeTree, Run
from hirl.cli.main import main
from hirl.data.sources.arrays import ArrayImages
from hirl.explore.collection import Collection
from hirl.explore.kept_tree import tree_id
from hirl.explore.node_names import suggest_names
from hirl.explore.tree_page import write_tree_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

expect = pytest.importorskip("playwright.sync_api").expect

Opener = Callable[..., Any]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opener]:  # noqa: ARG001 - pages close before it is deleted
    """Opens a page; at the end there must have been no error, no dialogue, and no request but for files."""
    problems: list[str] = []
    contexts = []

    @contextmanager
    def open_page(path: Path, address: str = "", **options: Any) -> Iterator[Page]:
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 860}} | options))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("dialog", lambda dialogue: problems.append(f"dialogue: {dialogue.message}"))
        page.on("requestfailed", lambda request: problems.append(f"failed: {request.url}"))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(("file:", "blob:", "data:")) else problems.append(request.url)
            ),
        )
        page.goto(path.as_uri() + address)
        yield page
        assert page.evaluate("window.pwned") is None
        assert page.evaluate("document.scripts.length") == 2

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def at(page: Page, end: str) -> None:
    """The address ends like this; the browser may take a moment to say so."""
    expect(page).to_have_url(re.compile(re.escape(end) + "$"))


def first_paint(page: Page) -> float:
    """Milliseconds to the first paint with content; a busy machine may not have painted yet."""
    for _ in range(100):
        found = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null")
        if found is not None:
            return float(found)
        page.wait_for_timeout(50)
    raise AssertionError("the page was not painted within 5 s")


def images_shown(page: Page, collection: Collection) -> list[int]:
    """The indices in the collection of the tiles on the page, by their titles."""
    found = page.locator("#images .tile").evaluate_all("tiles => tiles.map(tile => tile.title)")
    by_name = {shown_name(collection, index): index for index in range(len(collection))}
    return [by_name[title] for title in found]


def shown_name(collection: Collection, index: int) -> str:
    """Within the root, as the page writes it."""
    from hirl.data.sources.escape import one_line

    return one_line("/".join(collection.images.path(index).rsplit("/", 2)[1:]))


def test_the_templates_never_make_markup_of_data() -> None:
    folder = Path(hirl.explore.__file__).parent / "pages"
    scripts = {file.name: file.read_text() for file in folder.iterdir()}
    assert {"tree.js", "map.js", "gallery.js", "base.js"} <= set(scripts)
    for name, text in scripts.items():
        if name.endswith(".js"):
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), f"{name} names an address"


def test_the_first_view(opened: Opener, tree_page: Path, collection: Collection) -> None:
    with opened(tree_page) as page:
        assert page.locator("h1").inner_text() == "features"
        assert "60 images" in page.locator("main").inner_text()
        sizes = sorted(filter(None, collection.tree.sizes(2).tolist()), reverse=True)
        assert [int(text) for text in page.locator("#children .card .number").all_inner_texts()] == sizes
        assert "1 image could not be read" in page.locator("main").inner_text()
        assert first_paint(page) < 2000
        for name in collection.images.label_names[0]:  # text, not markup
            assert name in page.locator("#labels").inner_text()


def test_branches_open_and_close(opened: Opener, tree_page: Path, collection: Collection) -> None:
    top = int(collection.tree.sizes(2).argmax())
    with opened(tree_page) as page:
        item = page.locator(f"li[data-node='2-{top}']")
        assert item.get_attribute("aria-expanded") == "false"
        item.locator("> .branch .arrow").click()
        assert item.get_attribute("aria-expanded") == "true"
        children = [child for child in collection.tree.children(2, top).tolist() if collection.tree.sizes(1)[child]]
        assert item.locator("> ul > li").count() == len(children)
        at(page, "index.html")  # looking does not move
        item.locator("> ul > li").first.locator("> .branch .name").click()
        page.wait_for_url(re.compile(r"#node=1-\d+$"))
        item.locator("> .branch .arrow").click()
        assert item.get_attribute("aria-expanded") == "false"
        assert not item.locator("> ul > li").first.is_visible()


def test_a_deep_link_shows_its_node_and_the_images_by_typicality(
    opened: Opener, tree_page: Path, collection: Collection
) -> None:
    typical = collection.typicality()
    for level in range(3):
        node = int(collection.tree.sizes(level).argmax())
        images = collection.tree.images(level, node)
        expected = images[typical[images, level].argsort(descending=True, stable=True)].tolist()
        with opened(tree_page, f"#node={level}-{node}") as page:
            assert images_shown(page, collection) == expected
            page.get_by_role("tab", name="Least typical").click()
            assert images_shown(page, collection) == expected[::-1]
            page.get_by_role("tab", name="By name").click()
            assert images_shown(page, collection) == sorted(expected)
            assert page.locator(f"li[data-node='{level}-{node}'][aria-selected='true']").is_visible()
            steps = page.locator(".crumbs a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
            above = collection.tree.paths[collection.tree.leaves[expected[0]]].tolist()
            assert steps == ["#", *(f"#node={step}-{above[step]}" for step in range(2, level, -1))]


def test_a_link_to_no_node_says_so(opened: Opener, tree_page: Path) -> None:
    for wrong in ("9-9", "2-999", "<b>", "-1-0"):
        with opened(tree_page, f"#node={wrong}") as page:
            assert "There is no node" in page.locator(".notice").inner_text()
            assert page.locator("#children .card").count() > 0


def test_back_and_forward(opened: Opener, tree_page: Path) -> None:
    with opened(tree_page) as page:
        page.locator("#children .card").first.click()
        page.wait_for_url(re.compile("#node="))
        first = page.url
        page.locator("#children .card").first.click()
        page.go_back()
        at(page, first.rpartition("/")[2])
        page.go_back()
        assert page.locator("h1").inner_text() == "features"


def test_every_thumbnail_is_that_of_its_image(opened: Opener, tree_page: Path, collection: Collection) -> None:
    """Images are of one colour each, so a picture of the page tells them from each other."""
    with opened(tree_page) as page:
        page.locator("#images").scroll_into_view_if_needed()
        page.wait_for_timeout(300)
        tiles = page.locator("#images .tile")
        shown = images_shown(page, collection)
        assert len(shown) == 60
        picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
        for place, index in enumerate(shown):
            box = tiles.nth(place).bounding_box()
            scrolled = page.evaluate("scrollY")
            assert box is not None
            at = (round(box["x"] + 30), round(box["y"] + scrolled + 30))
            assert differs(picture, at, collection, index) < 14, shown_name(collection, index)


def differs(picture: Image.Image, at: tuple[int, int], collection: Collection, index: int) -> int:
    """How far the colour of a place on a picture is from that of an image, at most over the channels."""
    shown = np.asarray(picture)[at[1], at[0]].astype(int)
    return int(np.abs(shown - collection.images.read(index)[:, 0, 0].numpy().astype(int)).max())


def test_search_by_file_name(opened: Opener, tree_page: Path, collection: Collection) -> None:
    with opened(tree_page) as page:
        for text, count in (("кошка", 1), ("<IMG src", 1), ("18.png", 3), ("no such name", 0)):
            page.locator("#search").fill(text)
            assert f"{count} file" in page.locator("#found").inner_text()
            assert page.locator("#images .tile").count() == count
        assert "Nothing has this in its name" in page.locator("main").inner_text()
        page.locator("#search").press("Escape")
        assert page.locator("h1").inner_text() == "features"
    with opened(tree_page, "#search=%E6%97%A5%E6%9C%AC") as page:
        assert [shown_name(collection, index) for index in images_shown(page, collection)] == [
            f"{collection.images.label_names[0][0]}/日本語 кошка ελ.png"
        ]
        assert page.locator("#search").input_value() == "日本"


def test_keys(opened: Opener, tree_page: Path, collection: Collection) -> None:
    tree = collection.tree
    tops = [node for node in tree.sizes(2).argsort(descending=True, stable=True).tolist() if tree.sizes(2)[node]]
    children = tree.children(2, tops[0])
    largest = children[tree.sizes(1)[children].argmax()].item()
    with opened(tree_page) as page:
        press = page.keyboard.press
        press("ArrowRight")
        at(page, f"#node=2-{tops[0]}")
        press("j")
        at(page, f"#node=2-{tops[1]}")
        press("k")
        press("ArrowRight")
        at(page, f"#node=1-{largest}")
        press("t")
        assert page.get_by_role("tab", name="Least typical").get_attribute("aria-selected") == "true"
        press("ArrowLeft")
        press("ArrowLeft")
        at(page, "#")
        press("?")
        assert page.locator("#keys").is_visible()
        press("Escape")
        press("/")
        page.keyboard.type("h")  # typed, not obeyed
        assert page.locator("#search").input_value() == "h"
        press("Escape")
        press("ArrowRight")
        page.locator(f"li[data-node='2-{tops[0]}']").focus()  # now the tree itself
        press("ArrowLeft")  # closes it, as it was open
        press("ArrowRight")
        press("ArrowDown")
        at(page, f"#node=1-{largest}")
        press("ArrowLeft")
        assert page.evaluate("document.activeElement.dataset.node") == f"2-{tops[0]}"
        press("End")
        at(page, f"#node=2-{tops[-1]}")


def test_an_image_with_its_path(opened: Opener, tree_page: Path, collection: Collection) -> None:
    for index in range(10):  # those with hostile names among them
        row = int(collection.rows[index])
        path = collection.tree.paths[collection.tree.leaves[index]].tolist()
        with opened(tree_page, f"#image={row}") as page:
            assert page.locator("#viewer-name").inner_text() == shown_name(collection, index)
            links = page.locator(".path a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
            assert links == [f"#node={level}-{path[level]}" for level in (2, 1, 0)]
            if "\udcff" not in collection.images.path(index):  # a name that is not UTF-8 has no address
                expect(page.locator(".original")).to_have_js_property("naturalWidth", 40)
            page.keyboard.press("ArrowRight")
            at(page, f"#image={int(collection.rows[index + 1])}")
            page.keyboard.press("Escape")
            assert not page.locator("#viewer").is_visible()


def exported(page: Page, kind: str) -> str:
    page.locator("#export").click()
    with page.expect_download() as download:
        page.locator(f"[data-export='{kind}']").click()
    return Path(download.value.path()).read_text(encoding="utf-8")


def test_names_are_kept_exported_and_imported(
    opened: Opener, tree_page: Path, collection: Collection, tmp_path: Path
) -> None:
    top = int(collection.tree.sizes(2).argmax())
    given = '<b>cats</b> & "dogs", 猫'
    with opened(tree_page, f"#node=2-{top}") as page:
        page.keyboard.press("n")
        page.locator("#name-field").fill(given)
        page.keyboard.press("Enter")
        assert page.locator("h1").inner_text() == given
        assert page.locator(f"li[data-node='2-{top}'] > .branch .name").inner_text() == given
        page.reload()
        assert page.locator("h1").inner_text() == given
        written = exported(page, "names-json")
        found = json.loads(written)
        assert found["tree"] == tree_id(collection.tree)
        assert found["names"][f"2-{top}"] == given
        assert found["names"].get("2-0") in (given, "<i>first<\u2215i>")
        table = list(csv.DictReader(io.StringIO(exported(page, "names-csv"))))
        assert {(row["level"], row["node"], row["name"]) for row in table} >= {("2", str(top), given)}
        page.locator("#search").fill("CATS<")
        assert page.locator("main .card .name").inner_text() == given
    (tmp_path / "names.json").write_text(written, encoding="utf-8")
    (tmp_path / "names.csv").write_text(
        f'level,node,images,name\n2,{top},3,"of a\nspread ""sheet"""\n0,99999,1,nobody\n', encoding="utf-8"
    )
    (tmp_path / "other.json").write_text(json.dumps({"tree": "another", "names": {f"2-{top}": "x"}}), encoding="utf-8")
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    with opened(tree_page, f"#node=2-{top}") as page:  # a fresh profile: nothing is kept from before
        assert page.locator("h1").inner_text() != given
        for file, notice, heading in (
            ("other.json", "another tree", None),
            ("broken.json", "There are no names", None),
            ("names.json", "imported", given),
            ("names.csv", "1 name imported", 'of a spread "sheet"'),
        ):
            before = page.locator("h1").inner_text()
            page.locator("#import-file").set_input_files(tmp_path / file)
            expect(page.locator(".notice")).to_contain_text(notice)
            assert page.locator("h1").inner_text().replace("\\n", " ") == (heading or before)


def test_suggested_names_are_marked_and_kept_on_request(
    opened: Opener, tree_page: Path, collection: Collection, tmp_path: Path
) -> None:
    suggested = suggest_names(collection, collection.typicality())
    node = next(node for node in suggested if node.startswith("1-"))
    name, origin = suggested[node]
    with opened(tree_page, f"#node={node}") as page:
        assert page.locator("h1 em").inner_text() == name
        expect(page.locator(".heading-row")).to_contain_text(f"suggested from {origin}")
        rows = {
            f"{row['level']}-{row['node']}": row for row in csv.DictReader(io.StringIO(exported(page, "names-csv")))
        }
        assert (rows[node]["name"], rows[node]["origin"]) == (name, origin)
        assert rows["2-0"]["origin"] == "given"  # a person's name comes first
        (tmp_path / "names.csv").write_text(exported(page, "names-csv"), encoding="utf-8")
        page.locator("#import-file").set_input_files(tmp_path / "names.csv")
        expect(page.locator(".notice")).to_contain_text("1 name imported")
        page.locator("#accept").click()
        assert page.locator("h1 em").count() == 0
        found = json.loads(exported(page, "names-json"))
        assert found["names"][node] == name
        assert found["suggested"][node] == [name, origin]


def test_unsure_images_first(opened: Opener, tree_page: Path, collection: Collection) -> None:
    tree = collection.tree
    margins = tree.margins(collection.z[0], tree.leaves)
    top = int(tree.sizes(2).argmax())
    with opened(tree_page, f"#node=2-{top}") as page:
        page.locator("[data-order=unsure]").click()
        images = tree.images(2, top)
        expected = images[margins[images, 2].argsort(stable=True)].tolist()
        assert images_shown(page, collection)[:10] == expected[:10]
        page.keyboard.press("h")
        assert margins[images_shown(page, collection)[0], 2] == margins[:, 2].min()


def test_margins_are_differences_of_cosines(opened: Opener, tmp_path: Path) -> None:
    """Up to 2, where a node lies opposite the others; only a level of one node has none."""
    nodes = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    tree = PrototypeTree((nodes, nodes[:1]), (torch.tensor([0, 0]),), torch.tensor([0, 1]))
    images = ArrayImages(name="two", pixels=torch.zeros(2, 3, 16, 16, dtype=torch.uint8))
    two = Collection("two", images.name, images, torch.arange(2), nodes, (nodes,), tree, "", (), None)
    write_tree_page(two, tmp_path / "tree")
    with opened(tmp_path / "tree" / "index.html", "#image=0") as page:
        coarse, fine = page.locator(".path a").all_inner_texts()
    assert coarse.endswith("margin none: the only node")
    assert fine.endswith("margin 2.000")


def test_assignments_and_lists_of_files(opened: Opener, tree_page: Path, collection: Collection) -> None:
    from hirl.data.sources.escape import one_line

    path = collection.tree.path(collection.tree.leaves)
    labels = collection.images.labels
    assert labels is not None

    def name(index: int) -> str:
        found = collection.images.path(index)
        return one_line(found) if "\udcff" in found else found

    with opened(tree_page) as page:
        rows = list(csv.DictReader(io.StringIO(exported(page, "assignments-csv"), newline="")))
        assert [row["file"] for row in rows] == [name(index) for index in range(60)]
        assert [int(row["row"]) for row in rows] == collection.rows.tolist()
        for level in range(3):
            assert [int(row[f"level_{level}"]) for row in rows] == path[:, level].tolist()
        assert [row["label_0"] for row in rows] == [collection.images.label_names[0][label] for label in labels[:, 0]]
        everything = json.loads(exported(page, "assignments-json"))
        assert [row["file"] for row in everything["images"]] == [row["file"] for row in rows]
        top = int(collection.tree.sizes(2).argmax())
        page.goto(tree_page.as_uri() + f"#node=2-{top}")
        listed = json.loads(exported(page, "files-json"))
        assert sorted(listed) == sorted(name(index) for index in collection.tree.images(2, top).tolist())
        assert len(exported(page, "files-txt").splitlines()) == len(listed)


def test_a_narrow_screen(opened: Opener, tree_page: Path) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    for address in ("", "#node=2-0", "#node=2-0&image=3", "#search=png"):
        with opened(tree_page, address, **phone) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            if address:
                continue
            assert not page.locator("#tree").is_visible()
            page.locator("#outline-toggle").tap()
            page.locator("#tree .branch .name").first.tap()
            page.wait_for_url(re.compile("#node=2-"))
            expect(page.locator("#outline")).to_be_hidden()
            page.locator("#images .tile").first.tap()
            assert page.locator("#viewer").is_visible()


def test_light_and_dark(opened: Opener, tree_page: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with opened(tree_page, color_scheme="dark") as page:
        dark = page.evaluate(background)
        page.locator("#theme").click()
        light = page.evaluate(background)
        assert light != dark
        page.reload()
        assert page.evaluate(background) == light
    with opened(tree_page, color_scheme="light") as page:
        assert page.evaluate(background) == light


def test_the_gallery(opened: Opener, collection: Collection, tmp_path: Path) -> None:
    from hirl.explore.gallery_page import Group, Tile, write_gallery
    from hirl.explore.page import page_folder

    groups = [
        Group(f"<u>group</u> {start}", [Tile((collection.images, index), mark="keep") for index in (start, start + 1)])
        for start in range(59)
    ]
    with page_folder(tmp_path / "gallery") as aside:
        title, heading = "<s>title", "<s>heading"
        write_gallery(
            aside, tmp_path / "gallery", groups, title=title, heading=heading, facts=["<s>fact"], about="<s>about"
        )
    with opened(tmp_path / "gallery/index.html") as page:
        assert page.locator("h1").inner_text() == "<s>heading"
        assert page.title() == "<s>title"
        page.mouse.wheel(0, 20_000)
        expect(page.locator("section")).to_have_count(59)
        page.locator("section").nth(3).locator(".tile").first.click()
        assert page.locator("#viewer-name").inner_text() == shown_name(collection, 3)
        page.keyboard.press("ArrowRight")
        assert page.locator("#viewer-name").inner_text() == shown_name(collection, 4)


def test_the_map(opened: Opener, collection: Collection, tmp_path: Path) -> None:
    from hirl.explore.page import page_folder
    from hirl.explore.tsne import colourings
    from hirl.explore.tsne_page import write_map_page

    points = torch.arange(len(collection))
    places = torch.rand(len(points), 2, generator=torch.Generator().manual_seed(0)).numpy()
    places[7] = (0.0, 1.0)
    places[:7, 0] = places[8:, 0] = 0.2 + 0.8 * places[8:, 0].mean()
    panels = [("<u>one</u>", places), ("two", places[:, ::-1].copy())]
    with page_folder(tmp_path / "map") as aside:
        write_map_page(
            aside, tmp_path / "map", collection, points, panels, colourings(collection, points), algorithm="tsne"
        )
    with opened(tmp_path / "map/index.html") as page:
        assert page.locator("canvas").count() == 2
        assert page.locator("#legend button").count() == 3
        box = page.locator("canvas").first.bounding_box()
        assert box is not None
        side = min(box["width"], box["height"]) - 70
        at = (box["x"] + box["width"] / 2 - side / 2, box["y"] + box["height"] / 2 - side / 2)
        page.mouse.move(*at)
        assert shown_name(collection, 7).split("/")[1] in page.locator("#tip").inner_text()
        page.wait_for_timeout(200)
        tip = page.locator("#tip .thumb").bounding_box()
        assert tip is not None
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        assert differs(picture, (round(tip["x"] + 50), round(tip["y"] + 50)), collection, 7) < 14
        page.mouse.click(*at)
        assert page.locator("#viewer-name").inner_text() == shown_name(collection, 7)
        page.keyboard.press("Escape")
        page.mouse.move(*at)
        for _ in range(10):
            page.mouse.wheel(0, -300)
        page.locator("#colouring").select_option(label="tree, level 2")
        page.locator("#legend button").first.click()
        assert page.locator("#legend button").first.get_attribute("aria-pressed") == "true"
        page.locator("#reset").click()
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with opened(tmp_path / "map/index.html", **phone) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


class ManyImages(ArrayImages):
    """Files by name, pixels in memory."""

    def path(self, index: int) -> str:
        return f"/photos/class {index % 50}/IMG_{index:07d}.jpg"


def test_25000_images_are_there_within_two_seconds(opened: Opener, tmp_path: Path) -> None:
    N, levels = 25_000, (1300, 430, 43)
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 255, (N, 3, 1, 1), generator=random, dtype=torch.uint8).expand(N, 3, 16, 16)
    labels = torch.arange(N)[:, None] % 50
    images = ManyImages(
        name="many", pixels=pixels, labels=labels, label_names=(tuple(f"class {label}" for label in range(50)),)
    )
    tree = PrototypeTree(
        tuple(F.normalize(torch.randn(size, 16, generator=random), dim=1) for size in levels),
        tuple(torch.randint(0, below, (size,), generator=random) for size, below in pairwise(levels)),
        torch.randint(0, levels[0], (N,), generator=random),
    )
    z = torch.randn(N, 16, generator=random)
    many = Collection("many", images.name, images, torch.arange(N), z, (z,), tree, "", (), None)
    write_tree_page(many, tmp_path / "tree")
    with opened(tmp_path / "tree" / "index.html") as page:
        assert page.locator("#children .card").count() == 43
        assert first_paint(page) < 2000
        assert page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd") < 2000
        loaded = page.evaluate("performance.getEntriesByType('resource').length")
        assert loaded < 20, "thumbnails that are not shown were loaded"
        page.locator("#search").fill("0012345")
        assert page.locator("#images .tile").count() == 1


def test_the_page_of_a_run(opened: Opener, runs: dict[str, Run]) -> None:
    run = runs["hirl"]
    run.log("warning: <b>something</b> is wrong")
    assert main(["show", str(run.folder), "--page"]) == 0
    with opened(run.folder / "page" / "index.html") as page:
        assert page.locator(".warnings li").last.inner_text().startswith("<b>something</b> is wrong")
        assert page.locator(".chart svg .line, .chart svg circle").count() > 5
        knn = page.locator(".chart", has_text="KNN accuracy")
        assert "of val images" in knn.locator(".about").inner_text()
        accuracy = next(line["knn_val_level_2"] for line in run.metrics() if "knn_val_level_2" in line)
        assert f"knn val level 2 {100 * accuracy:.1f} %" in " ".join(knn.locator(".key").inner_text().split())
        assert knn.locator("svg circle").count() == 6  # three levels of labels, each beside its largest class
        page.locator(".chart svg").first.hover()
        assert "epoch" in page.locator(".chart .key").first.inner_text()
    with opened(run.folder / "page" / "index.html", viewport={"width": 390, "height": 844}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
