"""What is exported: pixels in, features out, and with levels z⁰…zᴸ, the path through the tree and its confidence."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hirl.data.loader import resized_side
from hirl.data.views.normalisation import default_normalisation
from hirl.encoders.adapter import AdaptedNetwork
from hirl.encoders.encoder_file import network_hash
from hirl.encoders.weights_source import Interpolation
from hirl.features.open_encoder import Encoder
from hirl.features.preprocessing import check_features, check_preprocessing
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods.base import Method
from hirl.runs.representations import Trained


class UnsupportedNetwork(ValueError):  # noqa: N818 (a message for users)
    """A tool does not have the network that is to be exported to it."""


@dataclass(frozen=True)
class PixelFormat:
    """How an image becomes the input: the shorter side to `resize`, the central square of `size`, then normalised."""

    size: int
    resize: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Interpolation = "bilinear"


@dataclass(frozen=True)
class Export:
    """An encoder on its way out. `outputs` are the names of what `network` gives, in order."""

    encoder: Encoder
    network: ImageNetwork
    pixels: PixelFormat
    outputs: tuple[str, ...]
    tree: PrototypeTree | None = None  # with levels
    names: Mapping[str, str] = field(default_factory=dict)  # of nodes, by level and number ("2-17")

    @property
    def node_names(self) -> list[list[str]]:
        """Per level, fine → coarse, the name of each node; level and number for one without a name."""
        levels = () if self.tree is None else self.tree.levels
        return [
            [self.names.get(f"{level}-{node}", f"{level}-{node}") for node in range(count)]
            for level, count in enumerate(levels)
        ]

    def metadata(self) -> str:
        """Preprocessing, outputs and names of nodes as JSON, for files that carry it with them."""
        found: dict[str, Any] = {"input": "RGB pixels, uint8" if self.pixels.channels == 3 else "pixels, uint8"}
        found |= {"preprocessing": asdict(self.pixels), "outputs": self.outputs}
        found |= {"nodes": self.node_names} if self.tree is not None else {}
        found |= {"encoder": self.encoder.name, "sha256": self.encoder.sha256}
        found |= {} if self.encoder.provenance is None else {"provenance": str(self.encoder.provenance)}
        return json.dumps(found, ensure_ascii=False)

    def unsupported_error(self, tool: str) -> UnsupportedNetwork:
        """The error for a tool that does not have this network."""
        network = self.encoder.network
        kind = "a frozen network with an adapter" if isinstance(network, AdaptedNetwork) else type(network).__name__
        return UnsupportedNetwork(f"{tool} has no network for the weights of {self.encoder.name} ({kind})")

    def random_images(self, count: int) -> Tensor:
        """(count, C, size, size), uint8; the same ones each time."""
        shape = (count, self.pixels.channels, self.pixels.size, self.pixels.size)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(count))


class ImageNetwork(nn.Module):
    """Pixels (B, C, size, size) of uint8 → outputs by name: `features`, and with levels `z0` … `path`, `confidence`.

    Without heads, as in an adapted encoder, the tree is over the features: there are no `z0` … then.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        pixels: PixelFormat,
        levels: LevelNetworks | None,
        tree: PrototypeTree | None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.levels = levels
        self.path_finder = None if tree is None else PathFinder(tree)
        self.register_buffer("mean", torch.tensor(pixels.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(pixels.std)[:, None, None])

    def normalise(self, pixels: Tensor) -> Tensor:
        return (pixels.float() / 255 - self.mean) / self.std

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        images = self.normalise(pixels)
        clustered = features = self.encoder(images)
        found = {"features": features}
        if self.levels is not None:
            z = self.levels(images)
            found |= {f"z{level}": rows for level, rows in enumerate(z)}
            clustered = z[0]
        if self.path_finder is not None:
            found["path"], found["confidence"] = self.path_finder(clustered.float())
        return found


class LevelNetworks(nn.Module):
    """Images (B, C, H, W) → z⁰…zᴸ, (B, D) each: `Trained` with nothing but the networks that it runs.

    The student of a teacher, its prototypes and a queue of keys would make the file larger. The method itself is not
    a part of this module: methods are equal if their arguments are, and exporters look modules up by identity.
    """

    def __init__(self, trained: Trained, images: Tensor) -> None:
        super().__init__()
        assert trained.paths is not None
        self._embed = trained.method.embed
        self.parts = nn.ModuleList(_called_modules(trained.method, lambda: trained.method.embed(images)))
        self.heads = trained.paths.heads

    def forward(self, images: Tensor) -> list[Tensor]:
        z0 = self._embed(images).float()
        return [z0, *(head(z0) for head in self.heads)]


class PathFinder(nn.Module):
    """z⁰ (B, D) → path (B, L), the nodes that `tree.path(tree.assign(z0))` finds, and its confidence (B, L).

    The confidence is `tree.margins`: the cosine of the path found, less that of the best path through another node of
    the level. With `tree.by_path` the cosine of a path is the mean over its levels, else that of its leaf.
    Plain tensor operations, which every exporter can write down.
    """

    leaf_paths: Tensor  # (M_1, L)
    targets: Tensor  # (M_1, D), or (M_1, d) in the tree's reduced space
    mean: Tensor
    axes: Tensor

    def __init__(self, tree: PrototypeTree) -> None:
        super().__init__()
        self.is_reduced = tree.reduced is not None
        self.register_buffer("leaf_paths", tree.paths.clone())
        self.register_buffer("targets", tree.mean_targets().clone())
        if tree.reduced is not None:
            self.register_buffer("mean", tree.reduced.mean.float().clone())
            self.register_buffer("axes", tree.reduced.axes.float().clone())

    def forward(self, z0: Tensor) -> tuple[Tensor, Tensor]:
        rows = F.normalize(z0, dim=1)
        if self.is_reduced:
            rows = F.normalize((rows - self.mean) @ self.axes, dim=1)
        cosines = rows @ self.targets.T  # (B, M_1)
        best, leaf = cosines.max(dim=1)
        path = self.leaf_paths[leaf]  # (B, L)
        confidence = []
        for level in range(self.leaf_paths.shape[1]):
            same = self.leaf_paths[:, level] == path[:, level, None]  # (B, M_1)
            confidence.append(best - cosines.masked_fill(same, -torch.inf).amax(1))
        return path, torch.stack(confidence, dim=1)


def _called_modules(module: nn.Module, run: Callable[[], object]) -> list[nn.Module]:
    """The submodules that a function calls, without those inside another one."""
    called: set[int] = set()

    def note(part: nn.Module, _inputs: object) -> None:
        called.add(id(part))

    hooks = [part.register_forward_pre_hook(note) for part in module.modules()]
    with torch.inference_mode():
        run()
    for hook in hooks:
        hook.remove()

    def walk(part: nn.Module) -> list[nn.Module]:
        return [part] if id(part) in called else [found for child in part.children() for found in walk(child)]

    return walk(module)


def pixel_format(
    encoder: Encoder,
    image_size: int | None,
    channels: int | None,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
) -> PixelFormat:
    """The preprocessing that the encoder was trained with; else what is given; else 224 pixels and ImageNet's."""
    check_preprocessing(encoder, image_size=image_size, channels=channels, mean=mean, std=std)
    form = encoder.format
    size = encoder.image_size or image_size or (224 if form is None else form.size)
    depth = encoder.channels or channels or 3
    own = default_normalisation(depth)
    mean, std = tuple(encoder.mean or mean or own.mean), tuple(encoder.std or std or own.std)
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != depth:
            raise ValueError(f"{name} has {len(values)} values, but the images have {depth} channels")
    resize = resized_side(size) if form is None else round(size / form.crop)
    return PixelFormat(size, resize, depth, mean, std, "bilinear" if form is None else form.interpolation)


def prepare(
    encoder: Encoder,
    pixels: PixelFormat,
    *,
    levels: bool,
    tree: PrototypeTree | None,
    names: Mapping[str, str] | None,
    method: str | type[Method] | None,
) -> Export:
    """The encoder, with levels, names and a tree; `tree`: of images without a run, for a run has its own."""
    outputs: tuple[str, ...] = ("features",)
    backbone, heads = encoder.network, None
    tree = (encoder.tree if tree is None else tree) if levels else None
    if levels and tree is None:
        raise ValueError(
            f"{encoder.name} has no levels: only a run that was trained with HIRL, and has its first tree, and a "
            "folder of images have a tree; leave levels out"
        )
    if levels and encoder.run is not None and encoder.run.config["hierarchy"]["head_layers"]:
        trained = encoder.load_trained(method=method)
        if network_hash(trained.method.encoder.state_dict()) == network_hash(backbone.state_dict()):
            backbone = trained.method.encoder  # the same module twice in a graph is computed once
        heads = LevelNetworks(trained, torch.zeros(2, pixels.channels, pixels.size, pixels.size))
        outputs += tuple(f"z{level}" for level in range(1 + len(heads.heads)))
    outputs += ("path", "confidence") if levels else ()
    network = ImageNetwork(backbone, pixels, heads, tree).eval()
    export = Export(encoder, network, pixels, outputs, tree, dict(names or {}))
    check_features(encoder.name, lambda images: network(images)["features"], export.random_images(2))
    return export
