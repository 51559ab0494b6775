"""Exported folders: what sentence-transformers makes of them, their card, what is refused.

python -m pytest tests/test_export.py
"""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer

from pipeline.encoder import embed, load_encoder
from pipeline.exporting import cross_encoder, sentence_transformer
from pipeline.heads import PairReading, PairScorer, load_scorer, raw_scores, to_labels
from pipeline.reading import Reading
from tests.refusal import contents, refusal
from tests.toy import done, only, read_json, small

KINDS = ["bert", "roberta", "xlm-roberta", "electra", "deberta-v2"]
CPU = torch.device("cpu")
FRAME = pd.DataFrame({
    "sentence_1": ["이 영화 진짜 재밌다", "가", "연기가 훨씬 좋았어요", "회의는 세 시"],
    "sentence_2": ["이 영화 정말 재미있다", "나 다", "연기가 나빴다", "회의는 네 시에 시작합니다"],
    "source": ["slack", "slack", "", "nsmc"]})
PAIRS = list(FRAME[["sentence_1", "sentence_2"]].itertuples(index=False, name=None))
TEXTS = [text for pair in PAIRS for text in pair]


def with_head(path, head, pooling="mean", prefix="", reading=None):
    """A saved scorer; a cross head's scale spreads the pairs' scores from below 0 to above 5."""
    torch.manual_seed(3)
    encoder = load_encoder(str(path), pooling, prefix, 24)
    scorer = PairScorer(encoder, head, reading or PairReading())
    if head == "cross":
        torch.nn.init.normal_(scorer.linear.weight, std=0.5)
        raw = raw_scores(scorer, scorer.pairs(FRAME), CPU)
        scorer.scale = 1.5 / float(np.ptp(raw))
        scorer.shift = -0.25 - scorer.scale * float(raw.min())
    scorer.save(path.parent / "saved")
    return path.parent / "saved"


@pytest.fixture
def plain(make_encoder, tmp_path):
    """`plain("bert")`: a copy of a tiny encoder's folder."""
    return lambda kind: shutil.copytree(make_encoder(kind), tmp_path / "plain")


@pytest.mark.parametrize(("kind", "pooling"), [
    *((kind, "cls") for kind in KINDS), ("bert", "mean"), ("deberta-v2", "mean"),
    ("roberta", "first_last_mean"), ("electra", "first_last_mean"), ("bert", "pooler"),
    ("roberta", "pooler")])
def test_same_vectors(kind, pooling, plain, tmp_path):
    """Every architecture and pooling, prefix and cut included, after a round over the disk."""
    encoder = load_encoder(str(plain(kind)), pooling, "가: ", 24)
    encoder.save(tmp_path / "saved")
    sentence_transformer(tmp_path / "saved").save_pretrained(str(tmp_path / "st"))
    loaded = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    texts = [*TEXTS, "길다 " * 40]
    ours = embed(encoder, encoder.tokens(texts), CPU)
    np.testing.assert_allclose(loaded.encode(texts), ours, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(loaded.encode_document(texts), ours, rtol=1e-3, atol=1e-5)
    assert loaded.max_seq_length == 24
    without = loaded.encode(texts, prompt="")
    assert not np.allclose(without, ours, rtol=1e-3, atol=1e-5)  # the prompt counts


@pytest.mark.parametrize(("kind", "pooling"), [
    *((kind, "cls") for kind in KINDS), ("bert", "mean"), ("roberta", "mean")])
def test_same_scores(kind, pooling, plain, tmp_path):
    """A cross head's labels, from 0 to 5 and clipped as ours are."""
    saved = with_head(plain(kind), "cross", pooling)
    cross_encoder(saved).save_pretrained(str(tmp_path / "ce"))
    scorer = load_scorer(saved)
    pairs = [*PAIRS, ("길다 " * 30, "짧다 " * 20)]
    frame = pd.DataFrame(pairs, columns=["sentence_1", "sentence_2"]).assign(source="")
    raw = raw_scores(scorer, scorer.pairs(frame), CPU)
    ours = to_labels(scorer, raw)
    assert ours[:4].min() == 0
    assert ours[:4].max() == 5
    assert len(set(ours)) > 2
    theirs = CrossEncoder(str(tmp_path / "ce"), device="cpu").predict(pairs)
    np.testing.assert_allclose(theirs, ours, atol=1e-3)


def test_source_tokens_are_written_by_the_user(plain, tmp_path):
    """A known source's token before a sentence gives the run's own score."""
    saved = with_head(plain("bert"), "cross", "cls", reading=PairReading(["slack"]))
    cross_encoder(saved).save_pretrained(str(tmp_path / "ce"))
    scorer = load_scorer(saved)
    ours = to_labels(scorer, raw_scores(scorer, scorer.pairs(FRAME), CPU))
    marked = [tuple("[slack] " * (source == "slack") + text for text in pair)
              for pair, source in zip(PAIRS, FRAME["source"], strict=True)]
    theirs = CrossEncoder(str(tmp_path / "ce"), device="cpu").predict(marked)
    np.testing.assert_allclose(theirs, ours, atol=1e-3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Where finished runs are kept between tests."""
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def finished(command, competition, make_encoder, tmp_path, trained):
    """`finished("sts.head=bi", …)`: the folder of an sts run, trained once."""
    def find(*words):
        cache = trained / "".join(words).replace("/", "")
        if not cache.exists():
            done(command, "stage=sts", *small(make_encoder("bert"), "chain=[sts]", *words,
                                              data=competition))
            shutil.copytree(tmp_path / "runs", cache)
        shutil.copytree(cache, tmp_path / "runs", dirs_exist_ok=True)
        return only(tmp_path / "runs" / "sts")

    return find


def test_export_of_a_cross_run(command, finished, tmp_path, caplog):
    """The folder scores dev as the run did; its card tells data, recipe and scores."""
    run = finished("sts.head=cross", "encoder.pooling=cls")
    done(command, "stage=export", f"run={run}", "export.dir=out/model")
    assert "out/model, for sentence_transformers.CrossEncoder" in caplog.text
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"]
    dev = pd.read_csv(tmp_path / "data" / "dev.csv")
    theirs = CrossEncoder(str(tmp_path / "out/model"), device="cpu").predict(
        list(zip(dev["sentence_1"], dev["sentence_2"], strict=True)))
    ours = pd.read_csv(run / "predictions" / "dev.csv")["prediction"]
    np.testing.assert_allclose(theirs, ours, atol=1e-3)
    card, metrics = (tmp_path / "out/model/README.md").read_text(), read_json(run / "metrics.json")
    found = metrics["dev"]["pearson"]
    assert (f"| dev | pearson | {found['value']:.4f} | {found['low']:.4f} – {found['high']:.4f} "
            "| 24 |") in card
    mark = read_json(run / "manifest.json")["shape"]["data"]["train"]
    assert f"| train | 48 | {', '.join(sorted(pd.read_csv('data/train.csv')['source'].unique()))}" \
        f" | {mark} |" in card
    assert "| sts.learning_rate | 0.001 |" in card
    assert "sts.epochs" not in card  # as its default
    assert card.startswith("---\nlanguage: ko\n")
    assert "license:" not in card
    for path in (tmp_path / "out/model").rglob("*"):
        assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes(), path


def test_export_of_a_bi_run(command, finished, tmp_path, caplog):
    """The cosine and the card's scale give the run's predictions; its folder starts a new run."""
    run = finished("sts.head=bi", "encoder.prefix=가: ")
    done(command, "stage=export", f"run={run}", "export.dir=out")
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    dev = pd.read_csv(tmp_path / "data" / "dev.csv")
    left, right = (model.encode(dev[f"sentence_{k}"].tolist(), normalize_embeddings=True)
                   for k in (1, 2))
    head = read_json(run / "model" / "head.json")
    labels = np.clip(5 * (head["scale"] * (left * right).sum(axis=1) + head["shift"]), 0, 5)
    ours = pd.read_csv(run / "predictions" / "dev.csv")["prediction"]
    np.testing.assert_allclose(labels, ours, atol=1e-3)
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"5 · ({head['scale']:.6g} · cosine {head['shift']:+.6g})" in card
    again = load_encoder(str(tmp_path / "out"))
    assert again.reading == Reading("mean", "가: ", 32)
    before = contents(tmp_path / "out")
    done(command, "stage=export", f"run={run}", "export.dir=out")
    assert "is there already" in caplog.text
    assert contents(tmp_path / "out") == before


def test_encoder_of_a_cross_run(command, finished, tmp_path):
    """Asked for by format: the encoder alone, and the card says what it is not."""
    run = finished("sts.head=cross", "encoder.pooling=cls")
    done(command, "stage=export", f"run={run}", "export.dir=out",
         "export.format=sentence-transformers")
    encoder = load_encoder(str(run / "model"))
    np.testing.assert_allclose(
        SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(TEXTS),
        embed(encoder, encoder.tokens(TEXTS), CPU), rtol=1e-3, atol=1e-5)
    assert "single sentences' vectors were not" in (tmp_path / "out" / "README.md").read_text()


def test_export_of_a_fold(command, finished, tmp_path):
    """One fold's model, its own held-out score, and a refusal where none is named."""
    run = finished("sts.head=cross", "sts.folds=2")
    for fold in (0, 3):
        said = refusal(command("stage=export", f"run={run}", "export.dir=out",
                               f"export.fold={fold}"))
        assert said.startswith("export.fold: expected 1 to 2")
    done(command, "stage=export", f"run={run}", "export.dir=out", "export.fold=2")
    folder = only(run / "folds" / "sts", "fold2-*")
    held = pd.read_csv(folder / "predictions" / "held.csv")
    train = pd.read_csv("data/train.csv").set_index("id").loc[held["id"]]
    theirs = CrossEncoder(str(tmp_path / "out"), device="cpu").predict(
        list(zip(train["sentence_1"], train["sentence_2"], strict=True)))
    np.testing.assert_allclose(theirs, held["prediction"], atol=1e-4)
    pearson = read_json(run / "metrics.json")["folds"][1]["pearson"]
    assert f"| fold 2's own pairs, not trained on | pearson | {pearson:.4f} |" in (
        tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(("words", "said"), [
    (["export.dir="], "export.dir: expected a new folder to write to, got none"),
    (["export.dir=data"], "export.dir: expected a new or empty folder, got data, which holds "
                          "other files"),
    (["export.dir=out", "export.fold=1"], "export.fold: expected 0 for a run without folds, got 1"),
    (["export.dir=out", "export.format=cross-encoder"],
     "export.format: expected sentence-transformers for a run without a cross head"),
    (["export.dir=out", "export.repo=a/b/c"], "export.repo: expected USER/NAME, got 'a/b/c'"),
    (["export.dir=out", "export.repo=name"], "export.repo: expected USER/NAME, got 'name'")])
def test_refused(words, said, command, finished, tmp_path):
    """One line, and nothing is written or changed."""
    run = finished("sts.head=bi", "encoder.prefix=가: ")
    before = contents(tmp_path)
    assert refusal(command("stage=export", f"run={run}", *words)).startswith(said)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("words", "said"), [
    (["encoder.prefix=가: "], "run: expected a cross-encoder without encoder.prefix"),
    (["sts.both_orders=true"], "run: expected a model that reads a pair once")])
def test_cross_heads_that_a_crossencoder_cannot_be(words, said, command, finished, tmp_path):
    """Refused in one line; no folder."""
    run = finished("sts.head=cross", *words)
    assert refusal(command("stage=export", f"run={run}", "export.dir=out")).startswith(said)
    assert not (tmp_path / "out").exists()


def test_a_changed_model_is_refused(command, finished, tmp_path):
    """A bit that flipped since the run wrote it."""
    run = finished("sts.head=bi", "encoder.prefix=가: ")
    file = run / "model" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    said = refusal(command("stage=export", f"run={run}", "export.dir=out"))
    assert said.startswith(f"{file}: expected the file that the run wrote")


def test_another_model_is_refused(command, finished, tmp_path, monkeypatch):
    """An architecture of which the library makes something else is found before it is named."""
    import pipeline.exporting

    run = finished("sts.head=bi", "encoder.prefix=가: ")
    monkeypatch.setattr(pipeline.exporting, "recorded", lambda path: Reading("cls", "가: ", 32))
    said = refusal(command("stage=export", f"run={run}", "export.dir=out"))
    assert said.startswith("run: expected an encoder of which sentence-transformers makes the same")
    assert not (tmp_path / "out").exists()


def test_without_the_package(command, finished, monkeypatch):
    """One line that says how to get it."""
    run = finished("sts.head=bi", "encoder.prefix=가: ")
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    said = refusal(command("stage=export", f"run={run}", "export.dir=out"))
    assert "pip install 'sentence-transformers>=6.0'" in said


def test_the_run_of_another_folder(command, finished, tmp_path):
    """An earlier export of another run is not written over."""
    run = finished("sts.head=bi", "encoder.prefix=가: ")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "export.json").write_text(json.dumps({"run": "another"}))
    said = refusal(command("stage=export", f"run={run}", "export.dir=out"))
    assert said.endswith("which holds the export of another model")


def test_push_by_key(command, finished, tmp_path, monkeypatch, caplog):
    """The folder goes to the repository, private by default; the token is written nowhere."""
    import pipeline.stages.export

    pushed = []
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret")
    monkeypatch.setattr(pipeline.stages.export, "push",
                        lambda *asked: pushed.append(asked) or "https://hub/me/model")
    run = finished("sts.head=bi", "encoder.prefix=가: ")
    words = ["stage=export", f"run={run}", "export.dir=out", "export.repo=me/model"]
    done(command, *words)
    done(command, *words, "export.private=false")
    assert [(str(folder), *rest) for folder, *rest in pushed] == [
        ("out", "me/model", True), ("out", "me/model", False)]
    assert "pushed: https://hub/me/model" in caplog.text
    assert not any(b"hf_secret" in data for data in contents(tmp_path).values())
