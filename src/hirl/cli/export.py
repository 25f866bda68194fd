"""`hirl export`: write an encoder or a tree in a format that other tools load without hirl."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Literal, get_args

from hirl.cli.collection import method_option
from hirl.cli.command import Command, check_absent
from hirl.config.parser import Parser
from hirl.files import check_parent

# options of tree targets; the others are for encoders
OF_TREES = ("source", "to", "out", "names", "encoder", "method", "overwrite")


def options(parser: Parser) -> None:
    from hirl.export.export_encoder import Target, export_encoder
    from hirl.export.export_tree import TreeTarget

    about = (
        "A run folder or a checkpoint in it, a file of weights, a timm name, or torchvision:NAME; a folder of images, "
        "for the tree that hirl tree shows; a tree file."
    )
    parser.add_argument("source", help=about)
    tools = f"For an encoder {', '.join(get_args(Target))}; for a tree {', '.join(get_args(TreeTarget))}."
    parser.add_argument("--to", type=Literal[Target, TreeTarget], required=True, help=tools)
    parser.add_argument("--out", type=Path, required=True, help="The file or folder to write.")
    parser.add_argument("--levels", action="store_true", help="Add z0 … zL, the path in the tree and its confidence.")
    parser.add_options(export_encoder, skip={"source", "to", "out", "overwrite", "levels", "encoder", "method"})
    parser.add_argument("--encoder", help="For a folder of images: the encoder of its tree; by default hirl's own.")
    method_option(parser)
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="Replace the file at --out, or a folder that holds an earlier export alone.",
    )


def run(config: Namespace) -> None:
    from hirl.export.export_encoder import WRITERS, check_export
    from hirl.export.export_tree import TREE_TARGETS, check_tree_export

    is_tree = config.to in TREE_TARGETS
    if is_tree:
        given = [name for name, value in vars(config).items() if value and name not in OF_TREES]
        if given:
            raise ValueError(f"--{given[0]} is for encoders, but --to is {config.to}, a format of trees")
        check_tree_export(config.to, config.out)
    else:
        check_export(config.to, config.out, levels=config.levels)
    check_parent(config.out)
    for out in [config.out] if is_tree else WRITERS[config.to].files(config.out):
        check_absent(out, overwrite=config.overwrite)
    if is_tree:
        _export_tree(config)
    else:
        _export_encoder(vars(config))


def _export_encoder(options: dict[str, object]) -> None:
    from hirl.export.export_encoder import export_encoder

    written = export_encoder(**options)  # type: ignore[arg-type]
    print(f"{', '.join(written.outputs)} written to {written.out}")
    print(
        f"Checked with the loader of {options['to']} on random images, in batches of 1 and 7: differs from torch by "
        f"{written.difference:.1e} at most"
    )


def _export_tree(config: Namespace) -> None:
    from hirl.export.export_tree import export_tree

    options = {name: getattr(config, name) for name in ("names", "encoder", "method")}
    outline = export_tree(config.source, config.to, config.out, **options)
    tree = f"tree of {', '.join(f'{count:,}' for count in outline.levels)} nodes"
    images = sum(node.count for node in outline.nodes[-1])
    content = f"{images:,} images and their paths through a {tree}" if config.to == "table" else tree.capitalize()
    print(f"{content} written to {config.out}")


EXPORT = Command(
    "export",
    "write an encoder or a tree for other tools: ONNX, timm, Newick …",
    options,
    run,
    examples={"hirl export runs/photos-dino-hirl-0 --to onnx --out encoder.onnx": "a run's encoder for onnxruntime"},
    guide="export.md",
)
