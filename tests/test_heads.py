"""Pair scorers: what a cross head and a bi head compute, save and calibrate.

python -m pytest tests/test_heads.py
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from pipeline.encoder import load_encoder
from pipeline.errors import UserError
from pipeline.heads import (
    PairClassifier,
    PairReading,
    PairScorer,
    fit_scale,
    load_scorer,
    logistic_link,
    raw_scores,
    to_labels,
)

TRAIN = Path(__file__).resolve().parent.parent / "data" / "sample" / "train.csv"
CPU = torch.device("cpu")
CASES = [("bert", "cross"), ("roberta", "cross"), ("deberta-v2", "cross"), ("bert", "bi"),
         ("electra", "bi")]


@pytest.fixture(scope="module")
def frame():
    """Sixty pairs, a third of whose sentences come twice."""
    table = pd.read_csv(TRAIN).head(40)[["sentence_1", "sentence_2"]]
    twins = table.head(20).rename(columns={"sentence_1": "sentence_2",
                                           "sentence_2": "sentence_1"})
    return pd.concat([table, twins], ignore_index=True)


@pytest.fixture
def make_scorer(make_encoder):
    """`make_scorer("bert", "cross")`: a scorer with random weights, large enough to tell apart."""
    def make(kind, head):
        torch.manual_seed(3)
        path = str(make_encoder(kind))
        scorer = PairScorer(load_encoder(path, pooling="mean", max_length=60), head)
        with torch.no_grad():
            scorer.encoder.backbone.embeddings.word_embeddings.weight.mul_(50)
            if head == "cross":
                scorer.linear.weight.mul_(20)
        return scorer.eval()

    return make


def scores_of(scorer, frame):
    """The frame's raw scores."""
    return raw_scores(scorer, scorer.pairs(frame), CPU)


@pytest.mark.parametrize(("kind", "head"), CASES)
def test_saved_scorer_gives_identical_scores(kind, head, make_scorer, frame, tmp_path):
    """Weights, head, scale and shift come back exactly."""
    scorer = make_scorer(kind, head)
    scorer.scale, scorer.shift = 0.7 / 3, -0.1
    scorer.save(tmp_path / "model")
    assert (tmp_path / "model" / "head.safetensors").exists() == (head == "cross")
    again = load_scorer(tmp_path / "model")
    assert (again.head, again.scale, again.shift) == (head, 0.7 / 3, -0.1)
    before, after = scores_of(scorer, frame), scores_of(again, frame)
    assert np.array_equal(before, after)
    assert np.array_equal(to_labels(scorer, before), to_labels(again, after))
    assert np.ptp(before) > 0.1  # not all alike


def test_folder_that_scores_no_pairs(make_encoder):
    """An encoder without a head is refused in one line that says what was expected."""
    with pytest.raises(UserError, match=r"head\.json: expected a model that scores pairs"):
        load_scorer(make_encoder("bert"))


@pytest.mark.parametrize(("kind", "head"), CASES)
def test_scores_do_not_depend_on_the_order(kind, head, make_scorer, frame):
    """A pair's score is its own, wherever it stands and whatever stands beside it."""
    scorer = make_scorer(kind, head)
    scores = scores_of(scorer, frame)
    assert scores.shape == (60,)
    order = np.random.default_rng(0).permutation(60)
    shuffled = scores_of(scorer, frame.iloc[order].reset_index(drop=True))
    np.testing.assert_allclose(shuffled, scores[order], rtol=1e-4, atol=1e-5)
    for row in (0, 25, 59):
        alone = scores_of(scorer, frame.iloc[[row]].reset_index(drop=True))
        np.testing.assert_allclose(alone, scores[[row]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "head"), CASES)
def test_batches_and_raw_scores_agree(kind, head, make_scorer, frame):
    """A batch as training sees it has the raw scores of its rows, in its order."""
    scorer = make_scorer(kind, head)
    pairs = scorer.pairs(frame)
    expected = raw_scores(scorer.train(), pairs, CPU)  # nothing is dropped
    assert scorer.training
    rows = np.array([41, 3, 58, 3, 20])
    with torch.no_grad():
        found = scorer.eval()(pairs.batch(rows))
    np.testing.assert_allclose(found.numpy(), expected[rows], rtol=1e-4, atol=1e-5)


def test_cross_reads_the_pair_at_once(make_scorer, frame, tmp_path):
    """The score is a linear layer over the encoder's vector of `<s> A </s> B </s>`."""
    scorer = make_scorer("bert", "cross")
    scorer.save(tmp_path / "model")
    head = load_file(tmp_path / "model" / "head.safetensors")
    pairs = scorer.pairs(frame)
    assert len(pairs) == len(pairs.tokens) == 60
    padded = scorer.encoder.tokenizer(
        list(frame["sentence_1"]), list(frame["sentence_2"]), padding=True, truncation=True,
        max_length=60, return_token_type_ids=True, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(tmp_path / "model").eval()(**padded).last_hidden_state
    mask = padded["attention_mask"][..., None]
    expected = (states * mask).sum(1) / mask.sum(1) @ head["weight"][0] + head["bias"]
    np.testing.assert_allclose(scores_of(scorer, frame), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(pairs.lengths, padded["attention_mask"].sum(1))


def test_bi_encodes_each_sentence_once(make_scorer, frame):
    """Each distinct sentence passes the encoder once; the score is the pair's cosine."""
    scorer = make_scorer("bert", "bi")
    encoded = []
    scorer.encoder.register_forward_hook(lambda module, args, vectors: encoded.append(len(vectors)))
    scores = scores_of(scorer, frame)
    assert sum(encoded) == len(set(frame.to_numpy().ravel())) < 120
    with torch.no_grad():
        for row in range(0, 60, 7):
            one, other = (scorer.encoder(scorer.encoder.tokens([text]).batch(np.arange(1)))[0]
                          for text in frame.loc[row])
            cosine = float(one @ other / (one.norm() * other.norm()))
            assert scores[row] == pytest.approx(cosine, abs=1e-5)
    np.testing.assert_allclose(scores[40:], scores[:20], atol=1e-6)  # swapped twins


def test_lengths_of_bi_pairs(make_scorer, frame):
    """A pair's length, by which batches are grouped, counts both sentences."""
    pairs = make_scorer("bert", "bi").pairs(frame)
    texts = [pairs.tokens.text(row) for row in range(len(pairs.tokens))]
    own = {text: int(length) for text, length in zip(texts, pairs.tokens.lengths, strict=True)}
    assert len(pairs) == 60
    assert pairs.lengths.tolist() == [own[a] + own[b] for a, b in frame.itertuples(index=False)]


@pytest.mark.parametrize("head", ["cross", "bi"])
def test_every_weight_learns(head, make_scorer, frame):
    """A loss on the scores reaches the encoder's first layer and the head."""
    scorer = make_scorer("bert", head).train()
    pairs = scorer.pairs(frame)
    scorer(pairs.batch(np.arange(8))).square().sum().backward()
    without = {name for name, p in scorer.named_parameters()
               if p.grad is None or not p.grad.any()}
    assert not without - {"encoder.backbone.embeddings.position_embeddings.weight"}
    assert (head == "cross") == any(name.startswith("linear") for name, _ in
                                    scorer.named_parameters())


@pytest.mark.parametrize("head", ["cross", "bi"])
def test_classifier(head, make_scorer, frame):
    """Logits are a linear layer over the pair's vector, for a bi head over u, v and |u − v|."""
    encoder = make_scorer("bert", head).encoder
    classifier = PairClassifier(encoder, head, classes=3).eval()
    rows = np.array([5, 30, 5, 0])
    with torch.no_grad():
        logits = classifier(classifier.pairs(frame).batch(rows))
        if head == "cross":
            pairs = list(frame.iloc[rows].itertuples(index=False, name=None))
            vectors = encoder(encoder.tokens(pairs).batch(np.arange(4)))
        else:
            u, v = (encoder(encoder.tokens(frame.iloc[rows][side]).batch(np.arange(4)))
                    for side in ("sentence_1", "sentence_2"))
            vectors = torch.cat([u, v, (u - v).abs()], dim=1)
        expected = vectors @ classifier.linear.weight.T + classifier.linear.bias
    assert logits.shape == (4, 3)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_fit_scale_recovers_a_linear_relation(make_scorer):
    """Raw scores that are a linear function of the labels give the labels back."""
    scorer = make_scorer("bert", "bi")
    labels = np.array([0, 1.2, 3.3, 5, 4.1])
    raw = (labels / 5 - 0.3) / 2.5
    fit_scale(scorer, raw.astype(np.float32), labels)
    assert (scorer.scale, scorer.shift) == pytest.approx((2.5, 0.3), rel=1e-5)
    np.testing.assert_allclose(to_labels(scorer, raw), labels, atol=1e-5)


def test_fit_scale_is_least_squares(make_scorer):
    """With noise the fit is the regression line of labels on scores."""
    scorer = make_scorer("bert", "bi")
    raw, noise = np.random.default_rng(0).standard_normal((2, 50))
    labels = np.clip(2.5 + raw + 0.3 * noise, 0, 5)
    fit_scale(scorer, raw, labels)
    design = np.stack([raw, np.ones(50)], axis=1)
    expected = np.linalg.lstsq(design, labels / 5, rcond=None)[0]
    assert [scorer.scale, scorer.shift] == pytest.approx(list(expected))


def test_fit_scale_of_constant_scores(make_scorer):
    """Scores that are all equal fix no line: scale and shift stay."""
    scorer = make_scorer("bert", "bi")
    fit_scale(scorer, np.full(4, 0.7, np.float32), np.array([1, 2, 3, 4.0]))
    assert (scorer.scale, scorer.shift) == (1.0, 0.0)


def test_to_labels_clips(make_scorer):
    """Labels are five times the score after scale and shift, never outside 0 to 5."""
    scorer = make_scorer("bert", "bi")
    raw = np.array([-0.5, 0, 0.5, 1, 1.5])
    assert to_labels(scorer, raw).tolist() == [0, 0, 2.5, 5, 5]
    scorer.scale, scorer.shift = 0.5, 0.2
    assert to_labels(scorer, raw) == pytest.approx([0, 1, 2.25, 3.5, 4.75])


@pytest.fixture
def sourced(frame):
    """Twelve pairs of two known sources, one that is unknown and one that is empty."""
    return frame.head(12).assign(source=["nsmc", "slack", "other", ""] * 3)


def reading_scorer(make_encoder, reading, head="cross", **options):
    """A scorer that reads pairs so, with random weights large enough to tell apart."""
    torch.manual_seed(3)
    encoder = load_encoder(str(make_encoder("bert")), pooling="mean", max_length=60)
    scorer = PairScorer(encoder, head, reading, **options)
    with torch.no_grad():
        scorer.encoder.backbone.embeddings.word_embeddings.weight.mul_(50)
        scorer.encoder.backbone.embeddings.word_embeddings.weight[-2:].normal_()
        if head == "cross":
            scorer.linear.weight.mul_(20)
    return scorer.eval()


@pytest.mark.parametrize("head", ["cross", "bi"])
def test_source_tokens(head, make_encoder, sourced, tmp_path):
    """A known source's own token stands before both sentences, an unknown one has none."""
    scorer = reading_scorer(make_encoder, PairReading(["nsmc", "slack"]), head)
    tokenizer, pairs = scorer.encoder.tokenizer, scorer.pairs(sourced)
    numbers = dict(zip(["nsmc", "slack"], tokenizer.convert_tokens_to_ids(["[nsmc]", "[slack]"]),
                       strict=True))
    assert len(set(numbers.values()) - {tokenizer.unk_token_id}) == 2
    for row, (source, *texts) in enumerate(sourced[["source", "sentence_1", "sentence_2"]]
                                           .itertuples(index=False)):
        own = [numbers[source]] if source in numbers else []
        sides = [own + tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        if head == "bi":
            places = (pairs.left[row], pairs.right[row])
            assert [pairs.tokens.ids(place).tolist() for place in places] == [
                [1, *side, 2][:60] for side in sides]
        elif len(sides[0] + sides[1]) <= 57:
            assert pairs.tokens.ids(row).tolist() == [1, *sides[0], 2, *sides[1], 2]
    scores = scores_of(scorer, sourced)
    others = scores_of(scorer, sourced.assign(source="third"))
    is_known = sourced["source"].isin(["nsmc", "slack"]).to_numpy()
    np.testing.assert_allclose(scores[~is_known], others[~is_known], rtol=1e-4, atol=1e-5)
    assert (np.abs(scores - others)[is_known] > 1e-4).all()
    scorer.save(tmp_path / "model")
    again = load_scorer(tmp_path / "model")
    assert again.reading == PairReading(["nsmc", "slack"])
    assert np.array_equal(scores_of(again, sourced), scores)


def test_both_orders(make_encoder, sourced, tmp_path):
    """The score is the mean of the scores of (a, b) and (b, a); loaded it still is."""
    plain = reading_scorer(make_encoder, PairReading())
    both = reading_scorer(make_encoder, PairReading(both_orders=True))
    twins = sourced.rename(columns={"sentence_1": "sentence_2", "sentence_2": "sentence_1"})
    one, other = scores_of(plain, sourced), scores_of(plain, twins)
    assert np.abs(one - other).max() > 1e-3
    scores = scores_of(both, sourced)
    np.testing.assert_allclose(scores, (one + other) / 2, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores_of(both, twins), scores, rtol=1e-4, atol=1e-5)
    both.save(tmp_path / "model")
    assert np.array_equal(scores_of(load_scorer(tmp_path / "model"), sourced), scores)


def test_dropout_samples(make_encoder, sourced):
    """In training each mask's scores, one set after the other, of one pass; else the score."""
    scorer = reading_scorer(make_encoder, PairReading(), dropout_samples=3)
    for module in scorer.encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    scorer.encoder.backbone.config.attention_probs_dropout_prob = 0.0
    for layer in scorer.encoder.backbone.encoder.layer:
        layer.attention.self.dropout.p = 0.0
    batch = scorer.pairs(sourced).batch(np.arange(12))
    expected = scorer(batch)
    assert expected.shape == (12,)
    passes = []
    scorer.encoder.register_forward_hook(lambda *parts: passes.append(parts[2]))
    torch.manual_seed(1)
    found = scorer.train()(batch)
    assert found.shape == (36,)
    assert len(passes) == 1
    torch.manual_seed(1)
    by_hand = [scorer.linear(scorer.dropout(passes[0])).squeeze(-1) for _ in range(3)]
    torch.testing.assert_close(found, torch.cat(by_hand))
    assert not torch.allclose(by_hand[0], by_hand[1])
    scorer.dropout.p = 0.0
    torch.testing.assert_close(scorer(batch), expected.repeat(3))


@pytest.mark.parametrize("seed", range(3))
def test_logistic_link(seed):
    """Labels above the threshold to begin with, whatever the seed: a loss pulls the right way."""
    torch.manual_seed(seed)
    scores = torch.tensor([[0.0], [0.5], [1.0]], requires_grad=True)
    logits = logistic_link(2.5)(scores)
    assert logits.flatten().tolist() == pytest.approx([-2.5, 0, 2.5])
    classes = torch.tensor([[1.0], [1.0], [0.0]])
    torch.nn.functional.binary_cross_entropy_with_logits(logits, classes).backward()
    assert (scores.grad.flatten() * torch.tensor([1, 1, -1]) < 0).all()


@pytest.mark.parametrize("head", ["cross", "bi"])
def test_heads_learn_from_what_they_are_given(head, make_encoder):
    """SimCSE's MLP, which no saved model has, does not stand between encoder and head."""
    path = str(make_encoder("bert"))
    frame = pd.DataFrame({"sentence_1": ["가나", "다라마"], "sentence_2": ["가", "나다"]})
    for made in (lambda encoder: PairScorer(encoder, head),
                 lambda encoder: PairClassifier(encoder, head, 3)):
        found = []
        for pooling in ("cls", "cls_mlp"):
            model = made(load_encoder(path, pooling, max_length=32, dropout=0.0))
            model.dropout = torch.nn.Identity()
            if hasattr(model, "linear"):
                torch.nn.init.ones_(model.linear.weight)
            batch = model.pairs(frame).batch(np.arange(2))
            found += [model.train()(batch).detach(), model.eval()(batch).detach()]
            assert not [name for name, _ in model.named_parameters() if "mlp" in name]
        for other in found[1:]:
            torch.testing.assert_close(other, found[0])
