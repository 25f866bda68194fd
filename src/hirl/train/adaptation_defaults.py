"""Default settings of a run that starts from an encoder: adapting it, or continuing its authors' training."""

from __future__ import annotations

from typing import Any

from hirl.config import read_options
from hirl.encoders.last_blocks import Blocks
from hirl.features.open_encoder import Encoder
from hirl.hierarchy.settings import EQ_4_WEIGHT
from hirl.methods import Method
from hirl.methods.foreign_state import ForeignState
from hirl.methods.parts.set_size import power_of_two, queue_length
from hirl.recipes import recipe_names
from hirl.train.defaults import (
    DEFAULT_METHOD,
    WHY_DEFAULT,
    Choices,
    Sizes,
    batch_that_fits,
    gpu_bytes,
    recipe_of,
    small_options,
)
from hirl.train.machine import Machine

ADAPT = "adapt/"  # folder of recipes, for a frozen encoder
# For an encoder whose last blocks train.
UNFROZEN_EPOCHS, UNMEASURED_WEIGHT = 10, 0.1
# For a method that continues from its authors' checkpoint.
CONTINUED_EPOCHS = 30
CONTINUED_LR_FACTOR = 0.1  # the full published rate would first undo what was learnt


def choose_adaptation(kind: type[Method], N: int, side: int, start: Encoder, unfreeze: Blocks, sizes: Sizes) -> Choices:
    """Choose what is not given for adapting `start` to N images.

    The encoder stays frozen except for the blocks to `unfreeze`; a method without a recipe in adapt/ needs some.
    """
    recipe = recipe_of(kind, ADAPT)
    if recipe is None and not unfreeze:
        names = ", ".join(sorted(name for name in recipe_names() if name.startswith(ADAPT)))
        raise ValueError(
            f"{kind.__name__} cannot adapt a frozen encoder: use --unfreeze to train its last blocks, --encoder null "
            f"to train from scratch, or a method of the recipes {names}"
        )
    options = small_options(kind) if recipe is None else read_options(recipe)
    image_size, batch_size, epochs = sizes.image_size, sizes.batch_size, sizes.epochs
    reasons = {}
    if epochs is None:
        epochs = UNFROZEN_EPOCHS if unfreeze else int(options["epochs"])
        reasons["epochs"] = "each a pass over all images" if unfreeze else "seconds each, as the encoder stays frozen"
    if image_size is None:
        image_size = start.size_for(side)
        own = start.format is None or start.format.size != image_size == side
        reasons["image_size"] = f"the images have {side} px" if own else "the encoder's own size"
    if batch_size is None:
        batch_size = min(int(options["batch_size"]), max(16, power_of_two(N / 8)), power_of_two(N))
        batch_size = sizes.shared(batch_size)
        reasons["batch_size"] = f"{N // batch_size:,} steps per epoch"
    arguments: dict[str, Any] = dict(options["method"]["init_args"])
    adapter = {} if unfreeze else arguments["backbone_args"]
    about = start.description
    arguments |= {"backbone": about["backbone"], "backbone_args": about["backbone_args"] | adapter}
    if "bn_splits" in arguments:
        arguments["bn_splits"] = 1  # the frozen encoder's batch norm uses stored statistics
    if unfreeze:
        arguments = sizes.grouped(arguments, batch_size)
    if "queue_length" in arguments:
        arguments["queue_length"] = queue_length(N, batch_size, most=int(arguments["queue_length"]))
    reasons["backbone"] = "stays frozen; an adapter on its features is trained"
    if unfreeze:
        reasons["backbone"] = f"blocks that train: {unfreeze if unfreeze == 'all' else f'the last {unfreeze}'}"
    reasons["weight"] = "of HIRL's loss, as measured with a frozen encoder"
    weight = float(options["hierarchy"]["weight"])
    if recipe is None:
        weight, reasons["weight"] = UNMEASURED_WEIGHT, "of HIRL's loss; not measured with this method"
    if kind is DEFAULT_METHOD:
        reasons["method"] = WHY_DEFAULT
    return Choices(kind(**arguments), image_size, batch_size, epochs, weight, reasons)


def choose_continuation(
    kind: type[Method], N: int, side: int, start: Encoder, heads: ForeignState, machine: Machine, sizes: Sizes
) -> Choices:
    """Choose what is not given for a method that continues to train all networks of its authors' checkpoint."""
    backbone = start.description["backbone"]
    image_size, batch_size, epochs = sizes.image_size, sizes.batch_size, sizes.epochs
    reasons = {"backbone": "with the heads of the checkpoint; all of it trains"}
    if epochs is None:
        epochs, reasons["epochs"] = CONTINUED_EPOCHS, "the networks are trained already"
    if image_size is None:
        image_size, reasons["image_size"] = start.size_for(side), "the encoder's own size"
    if batch_size is None:
        per_image = gpu_bytes(kind, backbone, image_size)
        batch_size, reasons["batch_size"] = batch_that_fits(N, machine, per_image, sizes)
    published = kind.for_images(N, batch_size)
    lr = published.lr * CONTINUED_LR_FACTOR
    arguments = published.arguments | heads.arguments | {"warmup_epochs": 1.0, "lr": lr}
    arguments |= {"backbone": backbone, "backbone_args": start.description["backbone_args"]}
    arguments = sizes.grouped(arguments, batch_size)
    if "queue_length" in arguments:
        arguments["queue_length"] = queue_length(N, batch_size, most=int(arguments["queue_length"]))
    reasons |= {"method": f"continues from its authors' checkpoint, at {CONTINUED_LR_FACTOR:g} of their learning rate"}
    reasons |= {"weight": "of HIRL's loss, as in the paper"}
    return Choices(kind(**arguments), image_size, batch_size, epochs, EQ_4_WEIGHT, reasons)
