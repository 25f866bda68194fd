"""The look of figures and contact sheets: colours, fonts, and metadata that make equal figures equal files."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

PAPER, INK, FAINT = "#faf9f6", "#26282e", "#6d6f78"  # background, text, secondary text
# Without a date or a version, the same figure gives an identical file.
METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
# Fallbacks for the letters that DejaVu lacks
OTHER_SCRIPTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans SC", "WenQuanYi Zen Hei", "PingFang SC",
    "Hiragino Sans", "Microsoft YaHei", "Noto Sans Devanagari", "Noto Sans Arabic", "Noto Sans Thai",
    "Arial Unicode MS", "Noto Sans Symbols",
)  # fmt: skip


@contextmanager
def font_context() -> Iterator[None]:
    """Figures drawn inside fall back on these fonts; a letter that none has is drawn as a box, without a warning."""
    from matplotlib import font_manager, rc_context

    known = set(font_manager.get_font_names())
    family = ["DejaVu Sans", *(name for name in OTHER_SCRIPTS if name in known)]
    with rc_context({"font.family": family, "svg.hashsalt": "hirl"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Glyph .* missing from .*")
        yield
