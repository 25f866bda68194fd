"""The `hirl` command: reads the line, calls the package, and turns a user's mistake into one sentence."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, PositiveInt

if TYPE_CHECKING:
    from PIL.Image import Image

    from hirl.data import ImageSet

MISTAKE, STOPPED = 2, 130
SHEETS = {".png": "PNG", ".webp": "WEBP", ".jpg": "JPEG", ".jpeg": "JPEG"}

ABOUT = """hirl learns hierarchical image representations from unlabelled pictures.

examples:
  hirl demo                                            a tree of handwritten digits, in seconds
  hirl pretrain photos/ --method DINO --epochs 100     learn from a folder of images; the same command continues
  hirl pretrain photos/ --method MoCoV2 --hierarchy null   the method alone, as a baseline
  hirl show runs/photos-dino-hirl-0                    a run as a page of text
  hirl images photos/ --out sheet.png                  what is in a folder, and a contact sheet of it
  hirl views photos/ --method dino --out views.png     what a network would see of it
  hirl cluster features.npy --out tree.safetensors     a tree over features of your own, levels fitted to their number
  hirl cluster features.npy --levels 3000 300 30 --out tree.safetensors
  hirl cluster --help                                  all there is to say to one command
"""


class Parser(ArgumentParser):
    """A parser whose errors are a user's mistake: one sentence, no usage text."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise ValueError(in_words(message)) from ex


def in_words(message: str) -> str:
    """A parser's message on one line, without the names of Python's things."""
    line = " ".join(message.split())
    union = re.search(
        r"Union subtypes .*?Errors: - (.*?)(?: - Expected a <class 'NoneType'>.*)?(?: Given value type:.*)?$", line
    )
    line = union[1] if union else line
    line = re.sub(r"^Parser key \"([^\"]+)\":", r"\1:", line)
    return re.sub(r"<class '([\w.]+)'>", r"\1", line)


def joined_levels(words: Sequence[str]) -> list[str]:
    """`--hierarchy.levels 3000 300 30` as the list the parser wants."""
    if "--hierarchy.levels" not in words:
        return list(words)
    start = words.index("--hierarchy.levels") + 1
    end = next((place for place in range(start, len(words)) if not words[place].isdigit()), len(words))
    if end == start:
        return list(words)
    return [*words[:start], f"[{','.join(words[start:end])}]", *words[end:]]


def check_class_paths(words: Sequence[str]) -> None:
    """A method outside the package is code: it may come from the command line, never from a config file.

    The parser imports, hence runs, a class path before it looks at it, so this comes first.
    """
    import yaml

    places = [place + 1 for place, word in enumerate(words[:-1]) if word == "--config"]
    files = [words[place] for place in places] + [
        word.split("=", 1)[1] for word in words if word.startswith("--config=")
    ]
    for file in files:
        if not Path(file).is_file():
            raise ValueError(f"there is no file {file!r}: --config takes a YAML file")
        try:
            method = (yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}).get("method")
        except (yaml.YAMLError, AttributeError, UnicodeDecodeError) as error:
            raise ValueError(f"{file!r} is no YAML file of options: {' '.join(str(error).split())}") from error
        name = method.get("class_path") if isinstance(method, dict) else method
        if isinstance(name, str) and "." in name and not name.startswith("hirl.methods."):
            raise ValueError(f"{file!r} names the method {name!r}, which is not of hirl: say it with --method instead")
    for place, word in enumerate(words[:-1]):
        if word == "--method" and words[0] == "pretrain" and "." not in words[place + 1]:
            import hirl.methods

            names = [name for name in hirl.methods.__all__ if name != "Method"]
            if words[place + 1] not in names:
                raise ValueError(f"there is no method {words[place + 1]!r}: choose one of {', '.join(names)}")


@dataclass(frozen=True)
class Command:
    name: str
    about: str
    options: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], None]


def cluster_options(parser: ArgumentParser) -> None:
    parser.add_argument("features", type=Path, help="a .npy file of shape (N, D), one row an image, of a float type")
    parser.add_argument("--out", type=Path, required=True, help="where the tree goes, a .safetensors file")
    parser.add_argument(
        "--levels", type=PositiveInt, nargs="+", help="nodes at each level, fine to coarse; by default fitted to N"
    )
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="of the starting rows")
    parser.add_argument("--iterations", type=PositiveInt, default=20, help="Lloyd steps a level at most")
    parser.add_argument("--restarts", type=PositiveInt, default=1, help="take the best of so many starts")
    parser.add_argument(
        "--tolerance", type=ClosedUnitInterval, default=0.002, help="stop when no more than this share of rows moves"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file at --out")


def cluster(config: Namespace) -> None:
    import numpy as np

    from hirl.hierarchy.kmeans import hierarchical_kmeans
    from hirl.hierarchy.levels import suggest_levels
    from hirl.show import kmeans_progress, level_table

    check_new(config)
    if not config.features.is_file():
        raise ValueError(f"there is no file {str(config.features)!r}: the features are a .npy file of shape (N, D)")
    try:
        features = np.load(config.features, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{str(config.features)!r} is no .npy file of numbers: {error}") from error
    if not isinstance(features, np.ndarray) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, np.ndarray) else "several arrays"
        raise ValueError(f"{str(config.features)!r} must hold one array of shape (N, D), not {shape}")
    levels: Sequence[int] | None = config.levels
    if levels is None:
        suggested = suggest_levels(len(features))
        print(f"levels {tuple(suggested)}: {suggested.why}")
        levels = suggested
    with kmeans_progress(len(features), levels, config.restarts * (config.iterations + 1)) as progress:
        tree = hierarchical_kmeans(
            features,
            tuple(levels),
            seed=config.seed,
            iterations=config.iterations,
            restarts=config.restarts,
            tolerance=config.tolerance,
            progress=progress,
        )
    tree.save(config.out)
    level_table(tree)
    print(f"tree of {len(tree.leaves):,} images written to {config.out}")


def source_options(parser: ArgumentParser) -> None:
    parser.add_argument("source", help="a folder, a .npz file, tar shards, or a known name such as shapes or cifar10")
    parser.add_argument("--split", help="train, val, test …; by default the training part")
    parser.add_argument("--root", type=Path, help="the folder that holds a torchvision data set")
    parser.add_argument("--download", action="store_true", help="fetch a torchvision data set that is missing")


def images_options(parser: ArgumentParser) -> None:
    source_options(parser)
    parser.add_argument("--out", type=Path, help="draw a contact sheet into this file (.png, .webp, .jpg)")
    parser.add_argument("--tile", type=PositiveInt, default=64, help="pixels a picture of the sheet")
    parser.add_argument("--columns", type=PositiveInt, default=4, help="pictures a class")
    parser.add_argument("--overwrite", action="store_true", help="replace the file at --out")


def images(config: Namespace) -> None:
    from hirl.data import class_sheet
    from hirl.show import image_table

    check_sheet(config)
    found = opened(config)
    image_table(found)
    if config.out is not None:
        save_sheet(class_sheet(found, tile=config.tile, columns=config.columns), config.out)


def views_options(parser: ArgumentParser) -> None:
    from hirl.data.view_recipes import RECIPES

    source_options(parser)
    parser.add_argument("--method", choices=tuple(RECIPES), required=True, help="whose views")
    parser.add_argument("--out", type=Path, required=True, help="the sheet's file (.png, .webp, .jpg)")
    parser.add_argument("--size", type=PositiveInt, help="of a global view; by default that of small images, else 224")
    parser.add_argument("--rows", type=PositiveInt, default=6, help="images shown, spread over the set")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="of the views")
    parser.add_argument("--overwrite", action="store_true", help="replace the file at --out")


def views(config: Namespace) -> None:
    from hirl.data import view_sheet
    from hirl.data.view_recipes import RECIPES

    check_sheet(config)
    found = opened(config)
    size = config.size or (224 if found.pixels is None else min(found.pixels.shape[-2:]))
    title = f"{config.method}, {size} px"
    save_sheet(
        view_sheet(found, RECIPES[config.method](size), rows=config.rows, seed=config.seed, title=title), config.out
    )


def opened(config: Namespace) -> ImageSet:
    from hirl.data import open_images

    return open_images(config.source, split=config.split, root=config.root, download=config.download)


def check_new(config: Namespace) -> None:
    from hirl.files import check_writable

    check_writable(config.out)
    if config.out.exists() and not config.overwrite:
        raise ValueError(f"{str(config.out)!r} exists already: name another --out, or say --overwrite")


def check_sheet(config: Namespace) -> None:
    if config.out is None:
        return
    if config.out.suffix.lower() not in SHEETS:
        raise ValueError(f"a sheet is a picture: --out {str(config.out)!r} must end in one of {', '.join(SHEETS)}")
    check_new(config)


def save_sheet(sheet: Image, out: Path) -> None:
    from hirl.files import written_whole

    with written_whole(out) as aside, aside.open("wb") as file:
        sheet.save(file, SHEETS[out.suffix.lower()], quality=80)
    print(f"contact sheet of {sheet.width} × {sheet.height} pixels written to {out}")


def pretrain_options(parser: ArgumentParser) -> None:
    import hirl.methods  # noqa: F401 (so that methods are found by their names)
    from hirl.train.pretrain import pretrain

    parser.add_argument("data", nargs="?", help="a folder of images, a .npz file, or a known name such as shapes")
    parser.add_argument("--config", action="config", help="a YAML file of these options, such as a run's config.yaml")
    parser.add_function_arguments(pretrain, skip={"data"}, fail_untyped=False)


def run_pretrain(config: Namespace) -> None:
    import yaml

    from hirl.train.loop import Stopped
    from hirl.train.pretrain import pretrain

    options = {name: value for name, value in vars(config).items() if name not in ("config", "data")}
    told = [yaml.safe_load(Path(str(file)).read_text(encoding="utf-8")).get("data") for file in config.config or []]
    data = next((place for place in (config.data, *reversed(told)) if place is not None), None)
    if data is None:
        raise ValueError("pretrain needs the images to train on: hirl pretrain FOLDER --method METHOD")
    try:
        pretrain(data, **options)
    except Stopped:
        sys.exit(STOPPED)


def show_options(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run folder")


def show(config: Namespace) -> None:
    from hirl.run import Run
    from hirl.show_run import show_run

    show_run(Run(config.run))


def runs_options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs"), help="where runs lie")


def runs(config: Namespace) -> None:
    from hirl.show_run import list_runs

    list_runs(config.folder)


def demo_options(parser: ArgumentParser) -> None:
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="of the tree's starting rows")


def demo(config: Namespace) -> None:
    from hirl.demo import digits_demo

    digits_demo(seed=config.seed)


COMMANDS = (
    Command("pretrain", "learns a hierarchical representation of a folder of images", pretrain_options, run_pretrain),
    Command("show", "shows a run as a page of text", show_options, show),
    Command("runs", "lists runs", runs_options, runs),
    Command("demo", "builds and prints a tree over the handwritten digits of scikit-learn", demo_options, demo),
    Command("images", "tells what a set of images holds, and draws a contact sheet of it", images_options, images),
    Command("views", "draws what a method's network sees of your images", views_options, views),
    Command("cluster", "builds a tree of prototypes over features of your own", cluster_options, cluster),
)


def _parser(words: Sequence[str]) -> ArgumentParser:
    """The parser for these words; the options of other commands than theirs stay unread, for they import much."""
    parser = Parser(prog="hirl", description=ABOUT, formatter_class=_formatter(), version=None)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--debug", action="store_true", help="show where a mistake was found, as a traceback")
    commands = parser.add_subcommands(required=False, title="commands")
    chosen = next((word for word in words if not word.startswith("-")), None)
    for command in COMMANDS:
        child = Parser(description=command.about)
        if command.name == chosen:
            command.options(child)
        commands.add_subcommand(command.name, child, help=command.about)
    return parser


def _formatter() -> type:
    from argparse import RawDescriptionHelpFormatter

    return RawDescriptionHelpFormatter


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words  # wherever it stands
    words = [word for word in words if word != "--debug"]
    try:
        check_class_paths(words)
        parser = _parser(words)
        config = parser.parse_args(joined_levels(words))
        if config.version:
            import hirl

            print(f"hirl {hirl.__version__}")
        elif config.subcommand is None:
            parser.print_help()
        else:
            command = next(command for command in COMMANDS if command.name == config.subcommand)
            command.run(parser.instantiate(config)[config.subcommand])
    except (ValueError, OSError) as error:
        if debug:
            raise
        print(f"hirl: {in_words(str(error))}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print("hirl: stopped", file=sys.stderr)
        return STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
