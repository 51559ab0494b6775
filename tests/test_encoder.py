"""An encoder's vectors: every pooling and architecture against transformers' own padded forward.

python -m pytest tests/test_encoder.py
"""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModel

from pipeline import packing
from pipeline.encoder import embed, load_encoder
from pipeline.errors import UserError
from pipeline.metrics import normalised

KINDS = ["bert", "roberta", "xlm-roberta", "camembert", "electra", "deberta-v2"]
TEXTS = ["이 영화 진짜 재밌다", "가", "배우의 연기가 기대보다 훨씬 좋았어요", "돈이 아깝다", "나"]
PAIRS = [("영화가 좋다", "이 영화는 좋아요"), ("나", "배우의 연기가 훨씬 좋았어요"), ("가", "나다")]
CPU = torch.device("cpu")


def load(make_encoder, kind="bert", **options):
    """A tiny encoder in evaluation mode."""
    return load_encoder(str(make_encoder(kind)), **{"max_length": 60} | options).eval()


def vectors(encoder, texts=TEXTS):
    """The texts' vectors as one batch."""
    return encoder(encoder.tokens(texts).batch(np.arange(len(texts))))


def plain_states(folder, tokenizer, texts=TEXTS, **options):
    """transformers' own outputs for the texts, padded whole, and the mask (n, L, 1)."""
    padded = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        found = AutoModel.from_pretrained(folder).eval()(**padded, **options)
    return found, padded["attention_mask"][..., None]


def close(found, expected):
    """Equal to rounding."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["cls", "cls_mlp", "mean", "first_last_mean"])
def test_pooling(kind, pooling, make_encoder, tokenizer):
    """In evaluation each pooling is what its name says, of transformers' hidden states."""
    found, mask = plain_states(make_encoder(kind), tokenizer, output_hidden_states=True)
    states = found.last_hidden_state
    if pooling == "first_last_mean":
        states = (found.hidden_states[1] + states) / 2
    expected = (states[:, 0] if pooling.startswith("cls")
                else (states * mask).sum(1) / mask.sum(1))  # (n, d)
    encoder = load(make_encoder, kind, pooling=pooling)
    assert encoder.width == 32
    close(vectors(encoder).detach(), expected)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
def test_pooler(kind, make_encoder, tokenizer):
    """The pooler's own output, where the architecture has one."""
    expected = plain_states(make_encoder(kind), tokenizer)[0].pooler_output
    close(vectors(load(make_encoder, kind, pooling="pooler")).detach(), expected)


@pytest.mark.parametrize("kind", ["electra", "deberta-v2"])
def test_pooler_is_refused_where_there_is_none(kind, make_encoder):
    """One line that names the architecture and the poolings that work."""
    with pytest.raises(UserError, match=rf"expected cls or mean.*{kind}.*got 'pooler'") as error:
        load(make_encoder, kind, pooling="pooler")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("is_dense", [False, True])
def test_gradients(kind, training, is_dense, make_encoder, tokenizer):
    """Every weight's gradient is that of a padded batch; also while training, nothing dropped."""
    encoder = load(make_encoder, kind, pooling="mean", dropout=1e-9).train(training)
    plain = AutoModel.from_pretrained(make_encoder(kind)).eval()
    texts = TEXTS * 20  # enough for several groups of like length
    if is_dense:  # in runs that need no padding
        texts.sort()
    assert encoder.tokens(texts).batch(np.arange(len(texts))).is_dense == is_dense
    weights = torch.linspace(-1, 1, len(texts) * 32).view(len(texts), 32)
    padded = tokenizer(texts, padding=True, return_tensors="pt")
    mask = padded["attention_mask"][..., None]
    states = plain(**padded).last_hidden_state
    expected = (states * mask).sum(1) / mask.sum(1)
    (expected * weights).sum().backward()
    found = vectors(encoder, texts)
    (found * weights).sum().backward()
    close(found, expected)
    oracle = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    seen = {name: p.grad for name, p in encoder.backbone.named_parameters() if p.grad is not None}
    assert len(oracle) > 20
    assert seen.keys() == oracle.keys()
    for name, gradient in oracle.items():
        torch.testing.assert_close(seen[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["mean", "first_last_mean", "cls"])
def test_company_does_not_change_a_vector(kind, pooling, make_encoder):
    """A sentence alone and beside longer ones has the same vector."""
    encoder = load(make_encoder, kind, pooling=pooling)
    together = vectors(encoder, TEXTS * 20)[-5:].detach()
    for text, vector in zip(TEXTS, together, strict=True):
        close(vectors(encoder, [text])[0].detach(), vector)


def test_mlp_in_training_only(make_encoder):
    """cls_mlp passes the first token through a tanh layer while it trains, and learns it."""
    encoder = load(make_encoder, pooling="cls_mlp", dropout=0.0)
    bare = vectors(encoder).detach()
    trained = vectors(encoder.train())
    assert trained.abs().max() <= 1
    assert bare.abs().max() > 1
    linear = next(layer for layer in encoder.mlp if hasattr(layer, "weight"))
    close(trained, torch.tanh(bare @ linear.weight.T + linear.bias))
    trained.square().sum().backward()
    assert linear.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_two_views(kind, make_encoder):
    """One batch that holds each row twice: views differ in training, agree in evaluation."""
    encoder = load(make_encoder, kind, pooling="mean")
    rows = np.arange(len(TEXTS))
    batch = encoder.tokens(TEXTS).batch(np.concatenate([rows, rows]))
    first, second = encoder(batch).chunk(2)
    close(first, second)
    first, second = encoder.train()(batch).chunk(2)
    assert ((first - second).abs().amax(dim=1) > 1e-2).all()


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_override(kind, make_encoder):
    """dropout replaces the model's own probability: 0 makes equal views, more drives them apart."""
    def distance(dropout):
        torch.manual_seed(0)
        encoder = load(make_encoder, kind, pooling="mean", dropout=dropout).train()
        first, second = vectors(encoder, TEXTS * 8).detach().chunk(2)
        return float((first - second).norm(dim=1).mean())

    assert distance(0.0) < 1e-4
    own, low, high = distance(None), distance(0.02), distance(0.5)
    assert low < 0.8 * own < 0.8 * 0.8 * high  # the model's own is 0.1
    assert distance(0.1) == pytest.approx(own)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize(("hidden", "attention"), [(0.3, 0.0), (0.0, 0.3)])
def test_dropout_is_that_of_transformers(kind, hidden, attention, make_encoder, tokenizer,
                                         tmp_path):
    """In training a sentence's vectors have the mean and the spread of transformers' own."""
    folder = shutil.copytree(make_encoder(kind), tmp_path / kind)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {
        "hidden_dropout_prob": hidden, "attention_probs_dropout_prob": attention}))
    texts = TEXTS * 200
    encoder = load_encoder(str(folder), pooling="mean", max_length=60).train()
    plain = AutoModel.from_pretrained(folder).train()
    padded = tokenizer(texts, padding=True, return_tensors="pt")
    mask = padded["attention_mask"][..., None]
    torch.manual_seed(0)
    with torch.no_grad():
        found = vectors(encoder, texts).view(200, 5, 32)
        states = plain(**padded).last_hidden_state
        expected = ((states * mask).sum(1) / mask.sum(1)).view(200, 5, 32)
    spread = expected.std(dim=0)  # (5, 32)
    assert float(found.std(dim=0).mean() / spread.mean()) == pytest.approx(1, abs=0.05)
    # The means of 200 differ by chance, by 0.08 of the spread in the mean.
    assert float(((found - expected).mean(dim=0).abs() / spread).mean()) < 0.15


def test_pairs_carry_token_types(make_encoder, tokenizer):
    """BERT is told which sentence is the second; sentences alone need no types."""
    encoder = load(make_encoder, pooling="cls")
    padded = tokenizer(*map(list, zip(*PAIRS, strict=True)), padding=True, return_tensors="pt",
                       return_token_type_ids=True)
    plain = AutoModel.from_pretrained(make_encoder("bert")).eval()
    with torch.no_grad():
        typed = plain(**padded).last_hidden_state[:, 0]
        padded.pop("token_type_ids")
        untyped = plain(**padded).last_hidden_state[:, 0]
    close(vectors(encoder, PAIRS).detach(), typed)
    assert (typed - untyped).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta"])
def test_no_token_types_for_roberta(kind, make_encoder, tokenizer, tmp_path):
    """A tokenizer that emits types 1 does no harm where the encoder has one type."""
    folder = shutil.copytree(make_encoder(kind), tmp_path / kind)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    encoder = load_encoder(str(folder), pooling="cls", max_length=60).eval()
    assert 1 in encoder.tokenizer(*PAIRS[0])["token_type_ids"]
    padded = tokenizer(*map(list, zip(*PAIRS, strict=True)), padding=True, return_tensors="pt")
    with torch.no_grad():
        plain = AutoModel.from_pretrained(folder).eval()
        close(vectors(encoder, PAIRS), plain(**padded).last_hidden_state[:, 0])


@pytest.mark.parametrize(("kind", "most"), [
    ("bert", 64), ("electra", 64), ("roberta", 65), ("xlm-roberta", 65),
    ("camembert", 65)])
def test_max_length(kind, most, make_encoder):
    """The longest sentence that has positions works; one token more is refused beforehand."""
    encoder = load(make_encoder, kind, max_length=most)
    text = ["가나다라마" * 30]
    assert encoder.tokens(text).lengths.tolist() == [most]
    assert vectors(encoder, text).isfinite().all()
    with pytest.raises(UserError, match=rf"max_length: expected {most} or less.*{most + 1}"):
        load(make_encoder, kind, max_length=most + 1)


@pytest.mark.parametrize("kind", ["bert", "deberta-v2"])
def test_embed(kind, make_encoder):
    """float32 rows in the texts' order, in evaluation mode, which it leaves as it was."""
    encoder = load(make_encoder, kind, pooling="mean")
    tokens = encoder.tokens(TEXTS * 30)
    expected = np.tile(vectors(encoder).detach().numpy(), (30, 1))
    found = embed(encoder.train(), tokens, CPU, desc="")
    assert encoder.training
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    encoder.eval()
    embed(encoder, tokens, CPU)
    assert not encoder.training


def by_plain_products(monkeypatch):
    """Attention as in training: products and a softmax."""
    plain = packing.attend

    def attend(*values):
        with torch.enable_grad():
            return plain(*values)

    monkeypatch.setattr(packing, "attend", attend)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["cls", "mean", "first_last_mean"])
def test_embed_in_bf16(kind, pooling, make_encoder, monkeypatch):
    """Under bf16 autocast vectors are fp32's to bf16's digits, and the weights are fp32's again."""
    encoder = load(make_encoder, kind, pooling=pooling)
    tokens = encoder.tokens(TEXTS * 30)
    before = {name: p.detach().clone() for name, p in encoder.named_parameters()}
    seen = set()
    encoder.backbone.register_forward_pre_hook(
        lambda module, inputs: seen.update(p.dtype for p in module.parameters()))
    with monkeypatch.context() as changed:
        by_plain_products(changed)
        exact = embed(encoder, tokens, CPU)
    assert seen == {torch.float32}
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        found = embed(encoder, tokens, CPU)
    assert seen == {torch.bfloat16}
    assert found.dtype == np.float32
    cosines = (normalised(exact) * normalised(found)).sum(axis=1)
    assert cosines.min() > 0.9995
    assert not np.array_equal(exact, found)
    for name, p in encoder.named_parameters():
        assert p.requires_grad
        assert torch.equal(p, before[name])


def test_weights_come_back_after_an_error(make_encoder):
    """An error while reading leaves fp32 weights behind, and a training step works."""
    encoder = load(make_encoder)
    tokens = encoder.tokens(TEXTS)

    def fails(module, inputs):
        raise MemoryError

    hook = encoder.backbone.register_forward_pre_hook(fails)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(MemoryError):
        embed(encoder, tokens, CPU)
    hook.remove()
    vectors(encoder).sum().backward()
    assert {p.grad.dtype for p in encoder.parameters() if p.grad is not None} == {torch.float32}


def test_embed_nothing(make_encoder):
    """No sentences are no rows."""
    encoder = load(make_encoder)
    assert embed(encoder, encoder.tokens([]), CPU).shape == (0, 32)


def test_special_tokens(make_encoder, tmp_path):
    """Each text is one token with the mean of all embeddings, in the saved folder too."""
    encoder = load(make_encoder)
    before = encoder.backbone.get_input_embeddings().weight.detach().clone()
    plain = vectors(encoder).detach()
    encoder.add_tokens(["<PERSON>", "[nsmc]"])
    first = len(before)
    for place, text in enumerate(["<PERSON>", "[nsmc]"]):
        assert encoder.tokens([text]).ids(0).tolist() == [1, first + place, 2]
        assert encoder.tokens([f"나{text}는"]).ids(0).tolist()[2] == first + place
    table = encoder.backbone.get_input_embeddings().weight.detach()
    assert table.shape == (first + 2, 32)
    assert torch.equal(table[:first], before)
    for row in (first, first + 1):
        torch.testing.assert_close(table[row], before.mean(dim=0))
    close(vectors(encoder).detach(), plain)  # the sentences have none of them
    encoder.save(tmp_path / "saved")
    again = load_encoder(str(tmp_path / "saved")).eval()
    texts = ["<PERSON> 나", "[nsmc] 영화가 좋다<PERSON>"]
    assert [again.tokens(texts).ids(row).tolist() for row in (0, 1)] == [
        encoder.tokens(texts).ids(row).tolist() for row in (0, 1)]
    assert torch.equal(vectors(again, texts), vectors(encoder, texts))


def test_known_special_tokens_stay(make_encoder):
    """What is a token already keeps its embedding: adding again changes nothing."""
    encoder = load(make_encoder)
    encoder.add_tokens(["<PERSON>"])
    with torch.no_grad():
        encoder.backbone.get_input_embeddings().weight[-1] = 3.0
    before = encoder.backbone.get_input_embeddings().weight.detach().clone()
    encoder.add_tokens(["<PERSON>", "<mask>"])
    assert torch.equal(encoder.backbone.get_input_embeddings().weight, before)
    encoder.add_tokens(["<PERSON>", "[new]"])
    assert torch.equal(encoder.backbone.get_input_embeddings().weight[:-1], before)


@pytest.mark.parametrize("text", ["", " "])
def test_empty_special_token(make_encoder, text):
    """A text without a sign is refused, and the embedding of <unk> stays what it was."""
    encoder = load(make_encoder)
    before = encoder.backbone.get_input_embeddings().weight.detach().clone()
    with pytest.raises(UserError, match=r"encoder\.special_tokens: expected texts, got "):
        encoder.add_tokens(["<PERSON>", text])
    assert torch.equal(encoder.backbone.get_input_embeddings().weight, before)
