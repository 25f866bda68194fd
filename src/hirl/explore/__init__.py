"""Output to look at or to process further: pages, contact sheets, figures, lists, embeddings and the demo."""

from hirl.explore.class_sheet import class_sheet
from hirl.explore.embed import embed
from hirl.explore.view_sheet import view_sheet

__all__ = ["class_sheet", "embed", "view_sheet"]
