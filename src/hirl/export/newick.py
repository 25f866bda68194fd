"""Newick: a tree as one line of nested brackets, which programs for phylogenetic trees read.

Every node has its name as a label, a branch of length 1, and id, number of images and exemplars in a comment of the NHX
form, `[&&NHX:id=2-17:count=12:exemplars=a.jpg]`; other programs ignore it.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from hirl.export.tree_outline import TreeOutline

TOKEN = re.compile(
    r"\s*(?:(?P<sign>[(),;])|'(?P<quoted>(?:[^']|'')*)'|\[(?P<comment>[^\]]*)\]|(?P<plain>[^\s(),;\[\]']+))"
)


def write_newick(outline: TreeOutline) -> str:
    """The tree on one line."""

    def text(entry: dict[str, Any]) -> str:
        children = f"({','.join(map(text, entry['children']))})" if entry.get("children") else ""
        label = "'" + " ".join(entry["name"].split()).replace("'", "''") + "'"
        files = (
            f":exemplars={','.join(quote(os.fsencode(file)) for file in entry['exemplars'])}"
            if entry.get("exemplars")
            else ""
        )
        return f"{children}{label}:1[&&NHX:id={entry['id']}:count={entry['count']}{files}]"

    return f"{text(outline.nested())};\n"


def read_newick(text: str) -> TreeOutline:
    """The tree of a Newick line, from here or elsewhere; its leaves must lie at one depth."""
    root: dict[str, Any] = {}
    text = text.rstrip()
    open_nodes, node, place = [root], root, 0
    while place < len(text):
        token = TOKEN.match(text, place)
        if token is None:
            raise ValueError(f"this is not a Newick tree: {text[place : place + 20]!r} cannot be read")
        place, sign = token.end(), token["sign"]
        if sign == "(":
            child: dict[str, Any] = {}
            node["children"] = [child]
            open_nodes.append(node)
            node = child
        elif sign in (",", ")"):
            if len(open_nodes) == 1:
                raise ValueError("this is not a Newick tree: its brackets do not match")
            if sign == ",":
                node = {}
                open_nodes[-1]["children"].append(node)
            else:
                node = open_nodes.pop()
        elif token["quoted"] is not None:
            node["name"] = token["quoted"].replace("''", "'")
        elif token["comment"] is not None:
            node |= _annotations(token["comment"])
        elif token["plain"]:
            label = token["plain"].partition(":")[0]
            if label:
                node["name"] = label
    if len(open_nodes) != 1:
        raise ValueError("this is not a Newick tree: its brackets do not match")
    return TreeOutline.of_nested(root)


def _annotations(comment: str) -> dict[str, Any]:
    if not comment.startswith("&&NHX:"):
        return {}
    found: dict[str, Any] = dict(pair.split("=", 1) for pair in comment[6:].split(":") if "=" in pair)
    if "exemplars" in found:
        found["exemplars"] = [os.fsdecode(unquote_to_bytes(file)) for file in found["exemplars"].split(",")]
    return found
