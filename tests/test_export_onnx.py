"""export.onnx=true: what onnxruntime makes of the graph with the folder's tokenizer alone.

python -m pytest tests/test_export_onnx.py    # with the packages of the extra `onnx`
"""

import numpy as np
import pandas as pd
import pytest
from refusal import contents, refusal
from test_export import CPU, FRAME, PAIRS, TEXTS, finished, plain, trained, with_head
from toy import done, read_json
from transformers import AutoTokenizer

from pipeline import graph
from pipeline.encoder import embed, load_encoder
from pipeline.exporting import cross_encoder, sentence_transformer
from pipeline.heads import load_scorer, raw_scores, to_labels
from pipeline.reading import RECORD

__all__ = ["finished", "plain", "trained"]  # fixtures
LONG = "길다 " * 40


def session(file):
    """The graph in onnxruntime."""
    for name in graph.PACKAGES:
        pytest.importorskip(name)
    import onnxruntime

    return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


def read_by(folder, file, texts, output):
    """The graph's output for texts as the folder's tokenizer gives them, all in one batch."""
    tokens = AutoTokenizer.from_pretrained(folder)(
        texts, padding=True, truncation=True, max_length=24, return_tensors="np")
    return session(file).run([output], dict(tokens))[0]


@pytest.fixture
def packages():
    """Skips where one of the packages is missing."""
    for name in graph.PACKAGES:
        pytest.importorskip(name)


@pytest.mark.parametrize(("kind", "pooling"), [
    ("bert", "pooler"), ("xlm-roberta", "first_last_mean"), ("deberta-v2", "mean")])
def test_same_vectors(packages, kind, pooling, plain, tmp_path):
    """Each way to pool; batches of one and many, short and cut."""
    encoder = load_encoder(str(plain(kind)), pooling, "가: ", 24)
    encoder.save(tmp_path / "saved")
    sentence_transformer(tmp_path / "saved").save_pretrained(str(tmp_path / "out"))
    (tmp_path / "out" / RECORD).write_bytes((tmp_path / "saved" / RECORD).read_bytes())
    file = tmp_path / "model.onnx"
    graph.write_graph(tmp_path / "out", "sentence-transformers", file)
    for texts in ([*TEXTS, LONG], [LONG], ["가"]):
        ours = embed(encoder, encoder.tokens(texts), CPU)
        prefixed = ["가: " + text for text in texts]
        theirs = read_by(tmp_path / "out", file, prefixed, "sentence_embedding")
        np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(
            graph.run_graph(tmp_path / "out", "sentence-transformers", file, texts), ours,
            rtol=1e-3, atol=1e-5)
    states = read_by(tmp_path / "out", file, TEXTS, "last_hidden_state")
    assert states.shape[0] == len(TEXTS)
    assert states.shape[2] == 32


@pytest.mark.parametrize("kind", ["roberta", "electra"])
def test_same_scores(packages, kind, plain, tmp_path):
    """A cross head's labels, from 0 to 5 and clipped."""
    saved = with_head(plain(kind), "cross", "cls")
    cross_encoder(saved).save_pretrained(str(tmp_path / "out"))
    file = tmp_path / "model.onnx"
    graph.write_graph(tmp_path / "out", "cross-encoder", file)
    scorer = load_scorer(saved)
    frame = FRAME.assign(source="")
    ours = to_labels(scorer, raw_scores(scorer, scorer.pairs(frame), CPU))
    assert (ours.min(), ours.max()) == (0, 5)
    theirs = read_by(tmp_path / "out", file, PAIRS, "scores")
    np.testing.assert_allclose(theirs, ours, atol=1e-3)


@pytest.mark.parametrize("words", [
    ("sts.head=cross", "encoder.pooling=cls"), ("sts.head=bi", "encoder.prefix=가: ")])
def test_by_key(packages, command, finished, tmp_path, caplog, words):
    """The graph stands in the folder, gives dev's predictions, and the card tells of it."""
    run = finished(*words)
    done(command, "stage=export", f"run={run}", "export.dir=out", "export.onnx=true")
    assert "export: onnxruntime: " in caplog.text
    assert {path.name for path in (tmp_path / "out/onnx").iterdir()} == {"model.onnx"}
    card = (tmp_path / "out/README.md").read_text()
    dev, ours = pd.read_csv("data/dev.csv"), pd.read_csv(run / "predictions/dev.csv")["prediction"]
    file, tokenizer = tmp_path / "out/onnx/model.onnx", AutoTokenizer.from_pretrained("out")
    left, right = dev["sentence_1"].tolist(), dev["sentence_2"].tolist()
    if words[0] == "sts.head=cross":
        tokens = tokenizer(left, right, padding=True, truncation=True, max_length=32,
                           return_tensors="np")
        labels = session(file).run(["scores"], dict(tokens))[0]
        assert "output scores." in card
    else:
        vectors = []
        for texts in (left, right):
            tokens = tokenizer(["가: " + text for text in texts], padding=True, truncation=True,
                               max_length=32, return_tensors="np")
            vectors.append(session(file).run(["sentence_embedding"], dict(tokens))[0])
        left, right = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in vectors)
        head = read_json(run / "model/head.json")
        labels = np.clip(5 * (head["scale"] * (left * right).sum(axis=1) + head["shift"]), 0, 5)
        assert "the prompt is to be written before each sentence." in card
    np.testing.assert_allclose(labels, ours, atol=1e-3)


def test_added_to_an_earlier_export(packages, command, finished, tmp_path):
    """Only the graph is added; given again, the command leaves it as it is."""
    words = ["stage=export", f"run={finished('sts.head=bi', 'encoder.prefix=가: ')}",
             "export.dir=out"]
    done(command, *words)
    before = contents(tmp_path / "out")
    done(command, *words, "export.onnx=true")
    after = contents(tmp_path / "out")
    assert after.keys() - before.keys() == {graph.FILE}
    assert before.items() <= after.items()
    done(command, *words, "export.onnx=true")
    assert contents(tmp_path / "out") == after


def test_large_weights_lie_beside(packages, plain, tmp_path, monkeypatch):
    """As protobuf's limit wants it; the graph finds them."""
    monkeypatch.setattr(graph, "LARGEST", 0)
    encoder = load_encoder(str(plain("bert")), "mean", "", 24)
    encoder.save(tmp_path / "saved")
    sentence_transformer(tmp_path / "saved").save_pretrained(str(tmp_path / "out"))
    (tmp_path / "onnx").mkdir()
    graph.write_graph(tmp_path / "out", "sentence-transformers", tmp_path / "onnx/model.onnx")
    (tmp_path / "onnx").rename(tmp_path / "moved")
    assert {path.name for path in (tmp_path / "moved").iterdir()} == {
        "model.onnx", "model.onnx.data"}
    np.testing.assert_allclose(
        read_by(tmp_path / "out", tmp_path / "moved/model.onnx", TEXTS, "sentence_embedding"),
        embed(encoder, encoder.tokens(TEXTS), CPU), rtol=1e-3, atol=1e-5)


def test_another_graph_is_refused(packages, command, finished, tmp_path, monkeypatch):
    """One whose vectors are others gets no name, and the folder none either."""
    run_graph = graph.run_graph
    monkeypatch.setattr(graph, "run_graph", lambda *words: run_graph(*words) + 0.1)
    run = finished("sts.head=bi", "encoder.prefix=가: ")
    words = ["stage=export", f"run={run}", "export.dir=out"]
    said = refusal(command(*words, "export.onnx=true"))
    assert said.startswith("run: expected an encoder of which onnxruntime makes the same vectors")
    assert not (tmp_path / "out").exists()
    done(command, *words)
    before = contents(tmp_path / "out")
    refusal(command(*words, "export.onnx=true"))
    assert contents(tmp_path / "out") == before


def test_other_files_in_its_place_stay(command, finished, tmp_path, monkeypatch):
    """Such as a graph that the user quantised and kept: refused before one is written."""
    monkeypatch.setattr(graph, "find_spec", lambda name: name)
    words = ["stage=export", f"run={finished('sts.head=bi', 'encoder.prefix=가: ')}",
             "export.dir=out"]
    done(command, *words)
    (tmp_path / "out/onnx").mkdir()
    (tmp_path / "out/onnx/model_quantized.onnx").touch()
    before = contents(tmp_path / "out")
    said = refusal(command(*words, "export.onnx=true"))
    assert said == "export.onnx: expected out/onnx to be new or empty, got other files in it"
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("missing", [["onnx"], ["onnxscript", "onnxruntime"]])
def test_without_the_packages(command, finished, tmp_path, monkeypatch, missing):
    """One line that says which to install; nothing is written."""
    monkeypatch.setattr(graph, "find_spec", lambda name: None if name in missing else name)
    run = finished("sts.head=bi", "encoder.prefix=가: ")
    said = refusal(command("stage=export", f"run={run}", "export.dir=out", "export.onnx=true"))
    assert said == (f"export.onnx: expected the packages onnx, onnxscript, onnxruntime, got no "
                    f"{' and no '.join(missing)}: .venv/bin/python -m pip install "
                    f"{' '.join(missing)}")
    assert not (tmp_path / "out").exists()
