"""Linear classification: the fast way against slow references, the official settings, and that nothing else moves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from hirl.data.sources.arrays import ArrayImages
from hirl.data.sources.image_set import ImageSet
from hirl.data.views.draws import permutation
from hirl.encoders.backbones import tokens
from hirl.evals import linear
from hirl.evals.base import Part, Subject
from hirl.evals.linear import Linear
from hirl.evals.training import logistic
from hirl.evals.training.classifier_training import Classifier, Supervision
from hirl.evals.training.learning_rates import TRUST, make_optimiser
from hirl.evals.training.logistic import fit
from hirl.evals.training.sampling import held_out
from hirl.evals.training.training_settings import LINEAR, TrainingSettings
from hirl.methods import IBOT, MoCoV3
from hirl.methods.base import Method, full_precision

from ..small_methods import METHODS

Make = Callable[..., Subject]


def relabelled(images: ArrayImages, labels: Tensor) -> ArrayImages:
    return ArrayImages(name=images.name, pixels=images.pixels, labels=labels, label_names=images.label_names)


# --- the fast way ---


def overlapping(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Five classes on 8 features of very different scales, which no line separates fully."""
    centres = torch.randn(5, 8, generator=torch.Generator().manual_seed(3))
    labels = torch.randint(5, (count,), generator=generator)
    scales = torch.logspace(-2, 2, 8)
    return (centres[labels] + torch.randn(count, 8, generator=generator)) * scales + 3, labels


def with_features(subject: Subject, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Subject:
    """The subject with these features and one level of labels for them."""
    names = (tuple(str(label) for label in range(int(train[1].max()) + 1)),)

    def images(name: str, labels: Tensor) -> ArrayImages:
        pixels = torch.zeros(len(labels), 3, 2, 2, dtype=torch.uint8)
        return ArrayImages(name=name, pixels=pixels, labels=labels[:, None], label_names=names)

    def features(part: Part) -> Tensor:
        return train[0] if part == "train" else test[0]

    parts: dict[Part, ImageSet] = {"train": images("train", train[1]), "test": images("test", test[1])}
    return replace(subject, features=features, parts=parts)


def test_fast_is_as_accurate_as_scikit_learn(coloured_subject: Make, generator: torch.Generator) -> None:
    train, test = overlapping(600, generator), overlapping(4000, generator)
    result = Linear().run(with_features(coloured_subject(), train, test))
    mean, std = train[0].mean(0), train[0].std(0)
    reference = LogisticRegression(max_iter=2000, C=100.0).fit((train[0] - mean) / std, train[1])
    expected = reference.score((test[0] - mean) / std, test[1])
    assert 0.6 < expected < 0.95  # neither chance nor a gift
    assert result.headline["5 classes"] == pytest.approx(expected, abs=0.01)


def test_fast_equals_plain_sgd_at_every_rate(generator: torch.Generator) -> None:
    """Against torch's own SGD and autograd, one regression at a time."""
    features, labels = overlapping(100, generator)
    features = features.double()
    rates, decays = torch.tensor([0.125, 1.0, 5.0]), torch.tensor([0.0, 0.03125, 0.125])
    options: dict[str, Any] = {"classes": 5, "epochs": 3, "batch_size": 16, "standardise": True, "seed": 7}
    together = fit(features, labels, rates=rates, weight_decays=decays, **options)
    inputs = (features - features.mean(0)) / features.std(0, correction=0) / 8**0.5
    for r in range(3):
        layer = nn.Linear(8, 5, dtype=torch.float64)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        groups: list[dict[str, Any]]
        groups = [
            {"params": [layer.weight], "weight_decay": float(decays[r])},
            {"params": [layer.bias]},
        ]
        optimiser = torch.optim.SGD(groups, lr=float(rates[r]), momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 3 * 6)
        for epoch in range(3):
            for batch in torch.from_numpy(permutation(7, epoch, 100))[:96].split(16):
                optimiser.zero_grad()
                F.cross_entropy(layer(inputs[batch]), labels[batch]).backward()
                optimiser.step()
                schedule.step()
        torch.testing.assert_close(together.weights[:, r * 5 : r * 5 + 5].T, layer.weight.detach())
        torch.testing.assert_close(together.biases[r * 5 : r * 5 + 5], layer.bias.detach())
        predictions = layer(inputs).argmax(1)
        assert torch.equal(together.predict(features)[:, r], predictions)


def test_the_test_labels_have_no_say_in_the_rate(coloured_subject: Make, generator: torch.Generator) -> None:
    train, test = overlapping(300, generator), overlapping(300, generator)
    subject = with_features(coloured_subject(), train, test)
    shuffled = test[1][torch.randperm(300, generator=generator)]
    other = with_features(coloured_subject(), train, (test[0].flip(0), shuffled))
    evaluation = Linear(weight_decays=(0.0, 1e-3))
    one, two = evaluation.run(subject), evaluation.run(other)
    assert one.chosen == two.chosen
    assert one.headline != two.headline


def test_the_rate_is_the_best_on_images_held_out(coloured_subject: Make, generator: torch.Generator) -> None:
    """Rates that learn nothing are offered beside one that does."""
    train, test = overlapping(500, generator), overlapping(500, generator)
    subject = with_features(coloured_subject(), train, test)
    result = Linear(rates=(1.0, 1e-9, 1e6)).run(subject)
    assert result.chosen["rates"]["5 classes"]["lr"] == 1.0
    assert result.chosen["rates"]["5 classes"]["held-out accuracy"] > 0.6  # what was fitted was fitted to its labels
    assert result.chosen["held_out"] == int(held_out(train[1], 0.1, seed=0).sum())


def test_the_rates_are_compared_without_the_images_held_out(
    coloured_subject: Make, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fitted at all rates never sees the images that choose among them; the best is fitted on all images."""
    train, test = overlapping(300, generator), overlapping(100, generator)
    subject = with_features(coloured_subject(), train, test)
    fits: list[tuple[int, Tensor]] = []
    judged: list[Tensor] = []

    def noted(features: Tensor, labels: Tensor, rows: Tensor | None = None, **options: Any) -> logistic.Regressions:
        assert torch.equal(features, train[0])
        assert torch.equal(labels, train[1])
        fits.append((len(options["rates"]), torch.arange(300) if rows is None else rows))
        return fit(features, labels, rows, **options)

    predict = logistic.Regressions.predict

    def noted_predict(self: logistic.Regressions, features: Tensor, rows: Tensor | None = None) -> Tensor:
        if rows is not None:
            judged.append(rows)
        return predict(self, features, rows)

    monkeypatch.setattr(linear, "fit", noted)
    monkeypatch.setattr(logistic.Regressions, "predict", noted_predict)
    Linear(rates=(0.1, 1.0, 3.0)).run(subject)
    aside = held_out(train[1], 0.1, seed=0)
    (tried, learnt), (chosen, final) = fits
    assert (tried, chosen) == (3, 1)
    assert torch.equal(learnt, (~aside).nonzero().flatten())
    assert torch.equal(final, torch.arange(300))
    assert len(judged) == 1
    assert torch.equal(judged[0], aside.nonzero().flatten())


@pytest.mark.parametrize("standardise", [True, False])
def test_features_are_converted_a_part_at_a_time_to_the_same_bits(
    standardise: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of all features, one per stage of the work, would need several times their memory."""
    features, labels = overlapping(3000, generator)
    features = features.half().repeat(1, 20)  # (3000, 160)
    rows = torch.randperm(3000, generator=generator)[:2000]
    options: dict[str, Any] = {"rates": torch.tensor([0.1, 1.0]), "weight_decays": torch.zeros(2), "seed": 7}
    options |= {"classes": 5, "epochs": 2, "batch_size": 64, "standardise": standardise}
    copied = features[rows].float()
    expected = fit(copied, labels[rows], **options)
    if standardise:
        std, mean = torch.std_mean(copied, dim=0, correction=0)
        assert torch.equal(expected.scaling.mean, mean)
        assert torch.equal(expected.scaling.std, std * 160**0.5)
    else:
        assert torch.equal(expected.scaling.std, copied.square().sum(1).mean().sqrt().expand(160))

    converted: list[int] = []

    def noted(part: Tensor) -> Tensor:
        converted.append(part.numel())
        return full_precision(part)

    monkeypatch.setattr(logistic, "full_precision", noted)
    monkeypatch.setattr(logistic, "CHUNK", 512)
    found = fit(features, labels, rows, **options)
    assert torch.equal(found.weights, expected.weights)
    assert torch.equal(found.biases, expected.biases)
    others = torch.arange(3000)[torch.isin(torch.arange(3000), rows, invert=True)]
    assert torch.equal(found.predict(features, others), expected.predict(features[others].float()))
    assert max(converted) <= max(512 * 160, 2000 * logistic.COLUMNS) < features.numel() / 2


def test_stored_features_are_not_copied(
    coloured_subject: Make, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, labels = overlapping(200, generator)
    stored = features.half()
    subject = with_features(coloured_subject(), (stored, labels), (stored, labels))
    places: list[int] = []

    def noted(given: Tensor, *others: Any, **options: Any) -> logistic.Regressions:
        places.append(given.data_ptr())
        return fit(given, *others, **options)

    monkeypatch.setattr(linear, "fit", noted)
    Linear(epochs=1).run(subject)
    assert places == [stored.data_ptr()] * 2


def test_a_tenth_of_every_class_is_held_out() -> None:
    labels = torch.tensor([0] * 40 + [1] * 20 + [2] * 3 + [3])
    aside = held_out(labels, 0.1, seed=5)
    assert torch.bincount(labels[aside], minlength=4).tolist() == [4, 2, 1, 0]
    assert torch.equal(aside, held_out(labels, 0.1, seed=5))
    assert not torch.equal(aside, held_out(labels, 0.1, seed=6))


def test_features_may_be_taken_as_they_are(coloured_subject: Make, generator: torch.Generator) -> None:
    """With scales this different, standardising matters; a common factor never does."""
    train, test = overlapping(600, generator), overlapping(600, generator)
    subject = with_features(coloured_subject(), train, test)
    raw = Linear(standardise=False).run(subject)
    assert raw.headline != Linear().run(subject).headline
    scaled = with_features(subject, (train[0] * 1024, train[1]), (test[0] * 1024, test[1]))
    assert Linear(standardise=False).run(scaled) == raw


def test_a_constant_feature_does_no_harm(coloured_subject: Make, generator: torch.Generator) -> None:
    train, test = overlapping(300, generator), overlapping(300, generator)
    for features, _ in (train, test):
        features[:, 2] = 0.0
    assert Linear().run(with_features(coloured_subject(), train, test)).headline["5 classes"] > 0.5


def test_all_levels_are_learnt_the_same_in_every_run(coloured_subject: Make) -> None:
    subject = coloured_subject()
    result = Linear().run(subject)
    assert result.headline["4 classes"] > 0.8
    assert result.headline["2 classes"] > 0.95
    assert [row["labels"] for row in result.rows] == ["4 classes", "2 classes"]
    assert Linear().run(subject) == result


# --- official settings ---


@pytest.mark.parametrize("method", METHODS.values())
def test_official_settings_are_those_of_the_method(method: type[Method]) -> None:
    published = method.facts.linear
    assert (published is None) == (method.__name__ not in LINEAR)
    if published is None:
        return
    settings = LINEAR[method.__name__]
    assert settings.classifier_lr == pytest.approx(published.lr * published.batch_size / 256)
    assert settings.rates == pytest.approx([rate * published.batch_size / 256 for rate in published.rates])
    assert settings.encoder_lr == 0
    same = ("optimiser", "weight_decay", "batch_size", "epochs", "milestones", "factor", "mean_patch")
    assert all(getattr(settings, name) == getattr(published, name) for name in same)
    assert settings.for_images(10**6) == settings


def test_milestones_and_cosines_keep_their_share_of_the_epochs() -> None:
    steps = LINEAR["MoCoV2"]
    assert [steps.share(epoch) for epoch in (0, 59.9, 60, 79.9, 80, 99)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    short = steps.for_images(10**6, epochs=10)
    assert [short.share(epoch) for epoch in (0, 5.9, 6, 7.9, 8)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    cosine = LINEAR["SwAV"].for_images(10**6, epochs=8)
    assert [cosine.share(epoch) for epoch in (0, 2, 4, 8)] == pytest.approx([1, (1 + 0.5**0.5) / 2, 0.5, 0])


@pytest.mark.parametrize("setting", ["fast", "MoCoV2", "SimSiam", "MoCoV3"])
def test_the_encoder_keeps_every_bit(coloured_subject: Make, setting: Any) -> None:
    subject = coloured_subject()
    before = copy.deepcopy(subject.encoder.state_dict())
    state = torch.get_rng_state()
    Linear(setting=setting, epochs=2).run(subject)
    assert any("running_mean" in name for name in before)
    for name, value in subject.encoder.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not subject.encoder.training
    assert all(parameter.grad is None for parameter in subject.encoder.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_an_official_setting_learns_all_levels_the_same_in_every_run(coloured_subject: Make) -> None:
    subject = coloured_subject("vit", method="MoCoV3", facts=MoCoV3.facts)
    result = Linear(setting="official", epochs=5).run(subject)
    assert result.headline["4 classes"] > 0.9
    assert result.headline["2 classes"] > 0.95
    assert result.chosen["classifier_lr"] == 3.0 * 16 / 256  # the batch for 160 images
    assert result == Linear(setting="MoCoV3", epochs=5).run(subject)


def test_levels_do_not_disturb_each_other(coloured_subject: Make) -> None:
    """The finest level alone gives the figure it gives beside the other."""
    subject = coloured_subject("vit")
    assert isinstance(subject.train, ArrayImages)
    assert isinstance(subject.test, ArrayImages)
    alone = []
    for images in (subject.train, subject.test):
        assert images.labels is not None
        alone.append(
            ArrayImages(
                name=images.name,
                pixels=images.pixels,
                labels=images.labels[:, :1],
                label_names=images.label_names[:1],
            )
        )
    evaluation = Linear(setting="SwAV", epochs=2)
    both = evaluation.run(subject).headline
    assert (
        evaluation.run(replace(subject, parts={"train": alone[0], "test": alone[1]})).headline["4 classes"]
        == both["4 classes"]
    )


def test_dino_joins_the_mean_patch_token(coloured_subject: Make, generator: torch.Generator) -> None:
    subject = coloured_subject("vit")
    images = torch.randn(3, 3, 16, 16, generator=generator)
    classifier = Classifier(subject, [4], LINEAR["DINO"])
    pooled, patches = tokens(subject.encoder, images)
    assert torch.equal(classifier.features(images), torch.cat([pooled, patches.mean(1)], dim=1))
    assert torch.equal(Classifier(subject, [4], LINEAR["MoCoV3"]).features(images), subject.encoder(images))
    cnn = coloured_subject("cnn")
    features = Classifier(cnn, [4], LINEAR["DINO"]).features(images)  # with folded batch norms
    torch.testing.assert_close(features, cnn.encoder(images), atol=1e-5, rtol=0)


def test_lars_adapts_the_rate_without_weight_decay() -> None:
    """The first step has length lr · trust · |w| whatever the gradient's."""
    layer = nn.Linear(6, 3)
    before = layer.weight.detach().clone()
    optimiser = make_optimiser(nn.Identity(), nn.ModuleList([layer]), LINEAR["SimSiam"])
    (layer(torch.randn(5, 6)).square().sum() * 1000).backward()
    optimiser.step()
    moved = (layer.weight.detach() - before).norm()
    torch.testing.assert_close(moved, LINEAR["SimSiam"].classifier_lr * TRUST * before.norm())


def test_ibot_sweeps_the_published_rates(coloured_subject: Make) -> None:
    """1 to 9 times 10⁻⁴ to 10⁰ per 256 images: all learn side by side, and each as it would alone."""
    published = [n * 10.0**k for k in range(-4, 1) for n in range(1, 10)]
    assert [rate * 256 / 1024 for rate in LINEAR["IBOT"].rates] == pytest.approx(published)
    subject = coloured_subject("vit", method="IBOT", facts=IBOT.facts)
    result = Linear(setting="official", epochs=2).run(subject)
    assert result.chosen["rates_tried"] == 45
    assert result.chosen["rate_chosen_on"] == "the test images, as in the original"
    here = [rate * 16 / 256 for rate in published]
    for row in result.rows:
        assert min(abs(row["lr"] / rate - 1) for rate in here) < 1e-9
    assert result.headline["2 classes"] > 0.9

    settings = LINEAR["IBOT"].for_images(len(subject.train), epochs=1)
    assert subject.train.labels is not None
    together = Classifier(subject, [4, 2], settings)
    alone = Classifier(subject, [4, 2], replace(settings, rates=settings.rates[30:31]))
    for place, head in ((30, 0), (75, 1)):
        alone.heads[head].load_state_dict(together.heads[place].state_dict())
    Supervision(subject, settings, "linear").learn(together, subject.train, subject.train.labels)
    single = replace(settings, rates=settings.rates[30:31])
    Supervision(subject, single, "linear").learn(alone, subject.train, subject.train.labels)
    for place, head in ((30, 0), (75, 1)):
        torch.testing.assert_close(together.heads[place].weight, alone.heads[head].weight)


# --- refusals ---


def test_refusals(coloured_subject: Make) -> None:
    subject = coloured_subject()
    with pytest.raises(ValueError, match=r"was trained by None, which has no official linear setting: .* MoCoV2"):
        Linear(setting="official").run(subject)
    with pytest.raises(ValueError, match="setting is 'mocov2', which has no official"):
        Linear(setting="mocov2").run(subject)
    with pytest.raises(ValueError, match=r"rates are \(0.0,\), but there must be at least one, each above 0"):
        Linear(rates=(0.0,)).run(subject)
    with pytest.raises(ValueError, match="weight_decays are"):
        Linear(weight_decays=()).run(subject)
    with pytest.raises(ValueError, match="epochs is 0, but must be at least 1"):
        Linear(epochs=0).run(subject)
    with pytest.raises(ValueError, match="epochs is 0, but must be at least 1"):
        Linear(setting="SwAV", epochs=0).run(subject)
    with pytest.raises(ValueError, match="batch_size is 500, but there are only 160 training images"):
        Linear(setting="SwAV", batch_size=500).run(subject)
    with pytest.raises(ValueError, match="one image per class, but the fast linear evaluation holds some out"):
        Linear().run(coloured_subject(count=1))
    with pytest.raises(ValueError, match="16-mixed, in which the highest rates overflow: choose bf16-mixed"):
        Linear(setting="IBOT", precision="16-mixed").run(subject)
    with pytest.raises(ValueError, match="cannot be cut into 3 equal parts"):
        Linear(setting="SwAV", batch_size=16, accumulate=3).run(subject)
    with pytest.raises(ValueError, match="classifier_lr is nan"):
        TrainingSettings(classifier_lr=np.nan, batch_size=1, epochs=1)
