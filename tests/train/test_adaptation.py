"""Adaptation of a frozen encoder: features computed once, an adapter trained on them, and the start kept beside it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from hirl import Hierarchy, Run, pretrain, ranks
from hirl.cli.main import main
from hirl.data import Shapes, open_images
from hirl.data.sources.images_in_memory import in_memory
from hirl.encoders.adapter import AdaptedNetwork
from hirl.encoders.backbones import make_backbone
from hirl.encoders.encoder_file import EncoderMetadata, save_encoder
from hirl.features import view_cache
from hirl.features.open_encoder import open_encoder
from hirl.features.preprocessing import preprocessing_for
from hirl.features.view_cache import CachedFeatureLoader, CachedViews, compute_or_load_views, fitting_views
from hirl.hierarchy.following import follow
from hirl.hierarchy.tree import PrototypeTree
from hirl.methods import MoCoV2, SimSiam, SwAV
from hirl.methods.base import Method, Plan
from hirl.methods.parts.augmentations import moco_view
from hirl.ranks import Ranks
from hirl.runs.faults import find_faults
from hirl.signals import Stopped
from hirl.train import setup
from hirl.train.feature_loader import FeatureLoader, find_partners
from hirl.train.joint import first_output
from hirl.train.loop import Loop
from hirl.train.start_and_adapted import compare_with_start, comparison_text

BACKBONE: dict[str, Any] = {"layers": [1, 1, 1, 1], "channels": [4, 4, 8, 8]}
HALVES = (0.5, 0.5, 0.5)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, images: Shapes) -> str:
    """A file with a small network, as if it were a strong one: its batch norm has the statistics of the images."""
    torch.manual_seed(0)
    network = make_backbone("resnet18", **BACKBONE)
    assert images.pixels is not None
    for _ in range(30):
        network(images.pixels[:64].float() / 127.5 - 1)
    file = tmp_path_factory.mktemp("start") / "start.safetensors"
    save_encoder(file, network, EncoderMetadata("resnet18", BACKBONE, 16, HALVES, HALVES))
    return str(file)


@pytest.fixture(scope="module")
def images() -> Shapes:
    return Shapes(images=96, size=16, cache=False)


@pytest.mark.parametrize("step", [0, 1])  # files of one size are read into memory
@pytest.mark.parametrize(("unfreeze", "size"), [(0, 224), (1, 96)])
def test_a_frozen_encoder_sees_files_as_large_as_pages_without_a_run_do(
    unfreeze: int, size: int, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").mkdir()
    for place in range(24):
        Image.new("RGB", (40, 30 + step * place), (place, 0, 0)).save(tmp_path / "photos" / f"{place}.png")

    class Built(Exception):  # noqa: N818
        pass

    def build(_fabric: Any, settings: Any, *_: Any, **__: Any) -> None:
        raise Built(settings.image_size)

    monkeypatch.setattr(setup, "build", build)
    with pytest.raises(Built, match=f"^{size}$"):
        pretrain(tmp_path / "photos", out=tmp_path / "run", unfreeze=unfreeze, accelerator="cpu")
    if not unfreeze:
        encoder = open_encoder("tf_efficientnet_lite0")
        for images in (open_images(tmp_path / "photos"), in_memory(open_images(tmp_path / "photos"))):
            assert preprocessing_for(encoder, images).size == size


def method(kind: type[Method] = MoCoV2) -> Method:
    more: dict[str, Any] = {"queue_length": 32, "bn_splits": 1} if kind is MoCoV2 else {}
    if kind is SwAV:
        more = {"hidden": 16, "prototypes": 8}
    return kind(backbone="resnet18", backbone_args={**BACKBONE, "adapter": 8, "adapter_dropout": 0.2}, dim=6, **more)


def options(out: Path, start: str) -> dict[str, Any]:
    hierarchy = Hierarchy(levels=(12, 4), start_epoch=0)
    more = {"out": out, "epochs": 3, "batch_size": 32, "image_size": 16, "cached_views": 3, "workers": 0}
    return {"method": method(), "hierarchy": hierarchy, "encoder": start, "knn_every": 0, **more}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory, images: Shapes, start: str) -> Run:
    return pretrain(images, **options(tmp_path_factory.mktemp("adapted") / "run", start))


def test_an_adapted_network_starts_as_the_frozen_one_and_takes_its_features() -> None:
    network = make_backbone("resnet18", **BACKBONE, adapter=8).train()
    assert isinstance(network, AdaptedNetwork)
    pixels = torch.rand(4, 3, 16, 16)
    features = network.frozen(pixels)
    assert not network.frozen.training
    assert torch.equal(network(pixels), features)
    nn.init.normal_(network.change.weight)
    assert torch.equal(network(features[:, :, None, None]), network(pixels))
    assert not torch.equal(network(pixels), features)
    assert {name for name, weight in network.named_parameters() if weight.requires_grad} == {
        f"{layer}.{name}" for layer in ("hidden", "change") for name in ("weight", "bias")
    }


def test_in_training_an_adapter_sees_a_part_of_the_features() -> None:
    network = make_backbone("resnet18", **BACKBONE, adapter=8, adapter_dropout=0.25).eval()
    assert isinstance(network, AdaptedNetwork)
    nn.init.normal_(network.change.weight)
    features = torch.rand(2000, network.num_features, 1, 1) + 1
    inputs: list[Tensor] = []
    network.hidden.register_forward_hook(lambda *passed: inputs.append(passed[1][0]))
    evaluated = network(features)
    trained = network.train()(features)
    assert not torch.equal(trained, evaluated)
    ratio = inputs[1] / features.flatten(1)
    kept = ratio > 0
    assert torch.equal(inputs[0], features.flatten(1))
    torch.testing.assert_close(ratio, kept / 0.75)
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.01)
    # what passes by the adapter is not dropped
    torch.testing.assert_close(trained, features.flatten(1) + network.change(network.hidden(inputs[1]).relu()))


def test_processes_drop_what_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    network = make_backbone("resnet18", **BACKBONE, adapter=8, adapter_dropout=0.5).train()
    assert isinstance(network, AdaptedNetwork)
    nn.init.normal_(network.change.weight)
    features = torch.rand(6, network.num_features, 1, 1)
    torch.manual_seed(0)
    alone = network(features)
    for rank, own in enumerate(features.chunk(2)):
        one_of_two = Ranks(None)
        one_of_two.rank, one_of_two.size = rank, 2
        monkeypatch.setattr(ranks, "world", lambda one=one_of_two: one)
        torch.manual_seed(0)
        torch.testing.assert_close(network(own), alone.chunk(2)[rank])


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_a_dropout_of_all_is_refused(dropout: float) -> None:
    with pytest.raises(ValueError, match=r"adapter_dropout is .*, but must be at least 0 and below 1"):
        make_backbone("resnet18", **BACKBONE, adapter=8, adapter_dropout=dropout)


def test_the_run_has_the_start_and_one_encoder_of_images(adapted: Run, start: str, images: Shapes) -> None:
    before, after = open_encoder(start), open_encoder(adapted)
    assert open_encoder(adapted.start_file).sha256 == before.sha256
    network = after.network
    assert isinstance(network, AdaptedNetwork)
    assert all(
        torch.equal(network.frozen.state_dict()[name], tensor) for name, tensor in before.network.state_dict().items()
    )
    pixels = torch.rand(4, 3, 16, 16)
    assert not torch.allclose(network(pixels), before.network(pixels), atol=1e-4)
    assert (after.image_size, after.mean) == (16, HALVES)
    assert adapted.config["encoder"] == start
    assert adapted.tree.count == len(images)


def test_start_and_adapted_stand_side_by_side(adapted: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """`hirl show` repeats what the run said at its end, with the same verdict."""
    assert adapted.adaptation is not None
    assert {"silhouette of 4 clusters", "views nearest to their own image", "KNN, label level 0"} <= set(
        adapted.adaptation
    )
    assert main(["show", str(adapted.folder)]) in (0, None)
    shown = capsys.readouterr().out
    text = comparison_text(adapted.adaptation)
    assert text in shown
    assert "the start → the adapted encoder" in text
    assert "is better" in text
    logged = adapted.log_file.read_text()
    assert all(line in logged for line in text.splitlines())


def test_figures_without_their_noise_are_not_shown(adapted: Run, tmp_path: Path) -> None:
    """As they were written before: repeating the command measures them again."""
    copy = Run(shutil.copytree(adapted.folder, tmp_path / "run"))
    copy.adaptation_file.write_text('{"silhouette of 4 clusters": [0.2, 0.3]}')
    assert copy.adaptation is None
    assert find_faults(copy) == ["adaptation.json is damaged"]


def test_differences_within_the_noise_name_no_winner() -> None:
    shown = comparison_text({"silhouette": (0.041, 0.081, 0.05), "agreement": (0.36, 0.32, 0.05), "views": (0.8,) * 3})
    assert "0.041 → 0.081  (+0.040; significant from 0.050)" in shown
    assert "Neither encoder is better: adaptation raises 0 of 3 figures" in shown
    better = comparison_text({"silhouette": (0.041, 0.081, 0.03), "agreement": (0.36, 0.32, 0.05)})
    assert "The adapted encoder is better: adaptation raises 1 of 2 figures" in better
    assert "The start is better" in comparison_text({"silhouette": (0.5, 0.48, 0.01), "agreement": (0.3, 0.4, 0.2)})


def test_the_objective_itself_does_not_decide() -> None:
    views = "views nearest to their own image"
    shown = comparison_text({"silhouette": (0.04, 0.04, 0.0), views: (0.8, 0.9, 0.01)})
    assert "Neither encoder is better: adaptation raises 1 of 2 figures" in shown
    assert "Views nearest to their own image do not decide: adaptation trains for them." in shown
    assert "(+0.000; noise below 0.001)" in shown
    assert "The start is better" in comparison_text({"silhouette": (0.3, 0.1, 0.01), views: (0.8, 0.9, 0.01)})


def noisy_rows(groups: torch.Tensor, noise: float, seed: int) -> torch.Tensor:
    """Features (n, 2, 32) of images of these groups and of a view of each."""
    draw = torch.Generator().manual_seed(seed)
    images = 4 * torch.eye(32)[groups] + torch.randn(len(groups), 32, generator=draw)
    return images[:, None] + noise * torch.randn(len(groups), 2, 32, generator=draw)


def test_encoders_that_are_equally_good_have_no_winner() -> None:
    """Their figures differ by much more than 0.01, since there are few images."""
    groups = torch.arange(120) % 8
    winners = differ = 0
    for seed in range(10):
        start, adapted = (noisy_rows(groups, 0.6, 2 * seed + side) for side in (0, 1))
        sides = compare_with_start(start, adapted, groups[:, None], (16, 8), seed=seed)
        winners += "Neither" not in comparison_text(sides)
        differ += sum(abs(before - after) >= 0.01 for before, after, _ in sides.values())
    assert winners <= 3
    assert differ >= 30


def test_very_few_images_have_no_clusters() -> None:
    for images in (torch.eye(4), torch.ones(40, 4) + torch.eye(4).repeat(10, 1)):  # four, and many copies of four
        rows = images[:, None].expand(-1, 2, -1)
        sides = compare_with_start(rows, rows, torch.arange(len(rows))[:, None] % 3, None, seed=0)
        assert "Neither encoder is better" in comparison_text(sides)


def test_a_better_encoder_is_named_and_more_images_tell_smaller_differences() -> None:
    least = {}
    for count in (160, 1600):
        groups = torch.arange(count) % 8
        sides = compare_with_start(noisy_rows(groups, 1, 0), noisy_rows(groups, 0.3, 1), None, (16, 8), seed=0)
        assert "The adapted encoder is better" in comparison_text(sides)
        least[count] = sides["views nearest to their own image"][2]
    assert 1.5 < least[160] / least[1600] < 7  # √10, as well as ten halves tell


@pytest.mark.parametrize("kind", [SimSiam, SwAV])
def test_other_methods_adapt_as_well(kind: type[Method], images: Shapes, start: str, tmp_path: Path) -> None:
    given = options(tmp_path / "run", start) | {"method": method(kind), "epochs": 1}
    run = pretrain(images, **given)
    assert run.finished


class Killed(BaseException):
    """Ends a run at once, as a kill does."""


def test_killed_and_continued_it_ends_in_the_same_bits(
    adapted: Run, images: Shapes, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Loop._step

    def killed(self: Loop, *arguments: Any) -> Any:
        if self.step == 4:  # in the second epoch
            raise Killed
        return step(self, *arguments)

    given = options(tmp_path / "run", start) | {"checkpoint_minutes": 0.0}
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", killed)
        with pytest.raises(Killed):
            pretrain(images, **given)
    kept = Path(start).read_bytes()
    save_encoder(
        Path(start), make_backbone("resnet18", **BACKBONE), EncoderMetadata("resnet18", BACKBONE, 16, HALVES, HALVES)
    )
    with pytest.raises(ValueError, match=r"is no longer the encoder that .* started from"):
        pretrain(images, **given | {"method": method()})
    Path(start).write_bytes(kept)
    run = pretrain(images, **given | {"method": method()})
    for file in ("encoder.safetensors", "tree.safetensors", "adaptation.json"):
        assert (run.folder / file).read_bytes() == (adapted.folder / file).read_bytes()


def test_damaged_figures_of_an_adaptation_are_not_shown(adapted: Run, tmp_path: Path) -> None:
    copy = Run(shutil.copytree(adapted.folder, tmp_path / "run"))
    assert copy.adaptation == adapted.adaptation
    text = copy.adaptation_file.read_text()
    place = text.index("0.") + 2
    copy.adaptation_file.write_text(text[:place] + ("1" if text[place] != "1" else "2") + text[place + 1 :])
    assert copy.adaptation is None


def test_what_an_adapted_run_has_lost_is_named_and_written_again(
    adapted: Run, images: Shapes, start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Run(shutil.copytree(adapted.folder, tmp_path / "run"))
    copy.about_file.unlink()
    copy.adaptation_file.unlink()
    copy.start_file.write_bytes(copy.start_file.read_bytes()[:2000])
    assert find_faults(copy) == ["start.safetensors is damaged", "about.json is missing", "adaptation.json is missing"]
    assert main(["show", str(copy.folder)]) == 0
    assert f"started from {start}" in capsys.readouterr().out
    pretrain(images, **options(copy.folder, start))
    assert copy.adaptation == adapted.adaptation
    assert open_encoder(copy.start_file).sha256 == open_encoder(adapted.start_file).sha256
    copy.start_file.unlink()
    pretrain(images, **options(copy.folder, start))
    assert find_faults(copy) == []


def test_features_of_a_killed_pass_are_not_computed_again(
    images: Shapes, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_cache, "SAVED_EVERY", 1)

    def compute(folder: str, progress: Callable[[str, int, int], None]) -> CachedViews:
        given: dict[str, Any] = {"size": 16, "mean": HALVES, "std": HALVES, "device": torch.device("cpu"), "workers": 0}
        network, view = open_encoder(start).network, moco_view(16)
        return compute_or_load_views(
            network, "start", images, view, 2, folder=tmp_path / folder, progress=progress, **given
        )

    def killing(_task: str, done: int, _total: int) -> None:
        if done == 64:
            raise Killed

    done: list[int] = []
    with pytest.raises(Killed):
        compute("killed", killing)
    continued = compute("killed", lambda _task, count, _total: done.append(count))
    assert done == [96]
    undisturbed = compute("undisturbed", lambda *_: None)
    assert torch.equal(continued.rows, undisturbed.rows)
    assert compute("killed", killing).readable.all()  # nothing is left to compute


def test_a_pass_that_is_asked_to_stop_is_saved_and_continued(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Shapes(images=96, size=16, cache=False, split="val")  # whose features are not in the cache yet
    with monkeypatch.context() as patch:
        patch.setattr("hirl.train.start.stop_signals", lambda: nullcontext(lambda: True))
        with pytest.raises(Stopped):
            pretrain(others, **options(tmp_path / "run", start))
    run = Run(tmp_path / "run")
    assert "features of 4 views per image: computed once, for 96 images" in run.log_file.read_text()
    assert "stopped at image 32 of 96; the same command continues" in run.log_file.read_text()
    monkeypatch.setattr("hirl.train.start.ESTIMATED_AFTER", 0.0)
    assert pretrain(others, **options(run.folder, start)).finished
    log = run.log_file.read_text()
    assert "features of 4 views per image: continues at image 32 of 96" in log
    assert re.search(r"features of 4 views per image: about \d+ s left, measured over 32 images", log)


@pytest.mark.parametrize("again", [False, True])
def test_unreadable_images_are_named_before_training(
    again: bool, start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a second run too, which takes the features from the cache."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for place, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (40, 300, 300, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder / f"{place:02}.png")
    (folder / "07.png").write_bytes(b"broken")
    for seed in range(1 + again):
        capsys.readouterr()
        run = pretrain(folder, **options(tmp_path / str(seed), start) | {"seed": seed, "epochs": 1})
    printed = capsys.readouterr().out
    sentence = r"1 of the 40 images of \S*photos cannot be read, and in training another image takes their place"
    (found,) = re.finditer(sentence, printed)
    assert found.start() < printed.index("the start → the adapted encoder")
    assert ".;" not in printed
    assert run.skipped_file.read_text().startswith("7\t")


def cached(N: int = 10, views: int = 3, unreadable: tuple[int, ...] = ()) -> CachedViews:
    """Features that name their image and view: (image, view)."""
    rows = torch.stack(torch.meshgrid(torch.arange(N), torch.arange(1 + views), indexing="ij"), dim=2).half()
    rows[list(unreadable)] = torch.nan
    return CachedViews(rows, ~rows[:, 0, 0].isnan())


def loader(given: CachedViews, views: int = 2, **more: Any) -> FeatureLoader:
    given_device: dict[str, Any] = {"normalisation": None, "device": torch.device("cpu")}
    return FeatureLoader(given, views, batch_size=4, seed=3, **given_device, **more)


def test_batches_are_different_views_of_each_image_from_any_batch_on() -> None:
    all_batches = loader(cached())
    all_batches.set_epoch(2)
    batches = list(all_batches)
    assert len(batches) == len(all_batches) == 2
    for batch in batches:
        first, second = (view[:, :, 0, 0] for view in batch.views)
        assert torch.equal(first[:, 0].long(), batch.index)
        assert torch.equal(second[:, 0].long(), batch.index)
        assert (first[:, 1] >= 1).all()
        assert (first[:, 1] != second[:, 1]).all()
    all_batches.set_epoch(2, 1)
    (last,) = all_batches
    assert torch.equal(last.views[1], batches[1].views[1])


def test_a_batch_must_be_one_that_processes_can_share() -> None:
    with pytest.raises(ValueError, match=r"batch_size is 4, but must be .* a multiple of the 3 processes"):
        loader(cached(), rank=0, world_size=3)


def test_images_that_cannot_be_read_are_replaced_in_training_and_marked_in_evaluation() -> None:
    damaged = cached(unreadable=(4, 9))
    drawn = torch.cat([batch.index for epoch in range(5) for batch in _epoch(loader(damaged), epoch)])
    assert not {4, 9} & set(drawn.tolist())
    (plain,) = CachedFeatureLoader(damaged, device=torch.device("cpu"))
    assert plain.readable.tolist() == [index not in (4, 9) for index in range(10)]
    assert plain.views[0].isfinite().all()


def _epoch(given: FeatureLoader, epoch: int) -> FeatureLoader:
    given.set_epoch(epoch)
    return given


def test_partners_are_the_nearest_images_of_the_same_node(generator: torch.Generator) -> None:
    features = torch.randn(30, 5, generator=generator)
    nodes = torch.randint(3, (30,), generator=generator)
    nodes[7] = -1
    found = find_partners(features, nodes)
    cosines = F.cosine_similarity(features[:, None], features[None], dim=2)
    for image in range(30):
        others = [other for other in range(30) if other != image and nodes[other] == nodes[image] >= 0]
        expected = sorted(others, key=lambda other: -float(cosines[image, other]))[:20]
        assert found[image].tolist() == expected + [-1] * (found.shape[1] - len(expected))


def test_partners_lend_their_views() -> None:
    lent = loader(cached(), neighbours=0.5)
    nodes = torch.arange(10) // 2  # in pairs
    lent.restrict_partners(nodes)
    both = [batch for epoch in range(20) for batch in _epoch(lent, epoch)]
    index, others = (
        torch.cat(parts) for parts in zip(*((b.index, b.views[1][:, 0, 0, 0].long()) for b in both), strict=True)
    )
    assert torch.equal(nodes[index], nodes[others])
    assert 0.35 < float((index != others).float().mean()) < 0.65
    assert all(torch.equal(batch.views[0][:, 0, 0, 0].long(), batch.index) for batch in both)


def test_prototypes_follow_the_features(random_tree: Callable[..., PrototypeTree], generator: torch.Generator) -> None:
    tree = random_tree((6, 2), 4, images=20)
    features = torch.randn(20, 3, generator=generator)
    index = torch.randperm(20, generator=generator)
    moved = follow(tree, features[index], index, Ranks(None))
    unit = F.normalize(features, dim=1)
    for level, nodes in enumerate(moved.prototypes):
        for node in range(len(nodes)):
            members = unit[tree.image_paths[:, level] == node]
            expected = F.normalize((members if len(members) else unit).sum(0), dim=0)
            torch.testing.assert_close(nodes[node], expected)
    assert torch.equal(moved.leaves, tree.leaves)
    images, alone = torch.arange(20_000) % 20, Ranks(None)  # in float32 the order of this many rows would show
    rows = torch.randn(20_000, 3, generator=generator) + 1
    order = torch.randperm(20_000, generator=generator)
    ordered, shuffled = follow(tree, rows, images, alone), follow(tree, rows[order], images[order], alone)
    assert all(map(torch.equal, ordered.prototypes, shuffled.prototypes))


def test_large_sets_get_fewer_views() -> None:
    assert fitting_views(1_500, 1280, 6) == 6
    assert fitting_views(400_000, 1280, 6) == 3
    assert fitting_views(10**8, 1280, 6) == 2
    assert np.isfinite(fitting_views(1, 1, 6))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": None}, "an adapter but no encoder to adapt"),
        ({"neighbours": 2.0}, "neighbours is 2.0, but must be a share"),
        ({"cached_views": 1}, "cached_views is 1, but must be at least 2"),
        ({"encoder": "no/such"}, "no run folder and no file 'no/such'"),
    ],
)
def test_what_cannot_be_adapted_is_named(
    changes: dict[str, Any], message: str, images: Shapes, start: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        pretrain(images, **options(tmp_path / "run", start) | changes)


@pytest.mark.parametrize("kind", [MoCoV2, SimSiam, SwAV])
def test_the_features_of_the_first_view_come_from_the_pass_of_the_method(kind: type[Method]) -> None:
    torch.manual_seed(0)
    adapted = method(kind)
    adapted.build(Plan(epochs=1, steps_per_epoch=2, batch_size=16, image_size=16, channels=3))
    nn.init.normal_(adapted.encoder.get_parameter("change.weight"))
    assert isinstance(adapted.encoder, AdaptedNetwork)
    adapted.encoder.dropout = 0.0  # each pass would drop other features
    views = list(torch.randn(len(adapted.views(16)), 16, 8, 1, 1))
    with first_output(adapted.encoder) as outputs:
        adapted(views, [None] * len(views), 0)
    torch.testing.assert_close(outputs[0][:16], adapted.encoder(views[0]))
