"""Encoders side by side: which are meant, what is computed, written, left out and refused.

python -m pytest tests/test_compare.py
"""

import json
import shutil
from pathlib import Path
from urllib.error import HTTPError, URLError

import numpy as np
import pandas as pd
import pytest
from huggingface_hub import constants
from matplotlib import image
from refusal import refusal
from toy import done, only, read_csv, read_json, small

from pipeline import hub
from pipeline.config import KEYS
from pipeline.corpus import sentence_table
from pipeline.diagnostics.contestants import Contestant, contestants
from pipeline.encoder import embed, load_encoder
from pipeline.errors import UserError
from pipeline.metrics import alignment, effective_rank, normalised, pearson, uniformity

FILES = {"compare.json", "table.csv", "pairs.csv", "figure.png"}


def asked(*names: object) -> str:
    """The key with these encoders."""
    return f"compare.encoders=[{','.join(map(str, names))}]"


def vectors_of(path: str, texts: list[str], **reading: object) -> np.ndarray:
    """An encoder's unit vectors."""
    import torch

    encoder = load_encoder(path, max_length=32, **reading)
    return normalised(embed(encoder, encoder.tokens(texts), torch.device("cpu")))


def test_compare(command, competition, make_encoder, tmp_path, caplog):
    """Every number is the encoder's own; pooling is as asked; unreachable models are named once."""
    folder = make_encoder("bert")
    done(command, "stage=compare", *small(folder), asked(
        "encoder", f"{folder}:cls", make_encoder("electra"), "klue/roberta-base:mean", "no/model"))
    out = only(tmp_path / "runs/compare")
    assert {path.name for path in out.iterdir()} == FILES
    found = read_json(out / "compare.json")
    rows = found["encoders"]
    assert [row["encoder"] for row in rows] == ["bert (encoder)", "bert:cls", "electra"]
    assert [row["pooling"] for row in rows] == ["mean", "cls", "mean"]
    dev = read_csv(competition / "dev.csv")
    texts, left, right = sentence_table(dev)
    labels = dev["label"].to_numpy()
    for row, path, pooling in zip(rows, (folder, folder, make_encoder("electra")),
                                  ("mean", "cls", "mean"), strict=True):
        vectors = vectors_of(str(path), texts, pooling=pooling)
        scores = (vectors[left] * vectors[right]).sum(axis=1)
        high = labels > 4
        assert row["pearson"]["value"] == pytest.approx(pearson(scores, labels), abs=1e-5)
        assert row["alignment"] == pytest.approx(
            alignment(vectors[left[high]], vectors[right[high]]), rel=1e-3)
        assert row["uniformity"] == pytest.approx(uniformity(vectors), rel=1e-3)
        assert row["effective_rank"] == pytest.approx(effective_rank(vectors), rel=1e-3)
        assert f"{row['encoder']}: {row['verdict']}" in caplog.text
        assert {part["kind"] for part in row["probes"]} >= {"negation", "number"}
    pairs = pd.read_csv(out / "pairs.csv")
    assert len(pairs) == 10
    one, other = (vectors_of(str(folder), pairs[name].tolist(), pooling="cls")
                  for name in ("sentence_1", "sentence_2"))
    assert pairs["bert:cls x5"].tolist() == pytest.approx(
        (5 * (one * other).sum(axis=1)).tolist(), abs=1e-4)
    assert pairs["bert:cls calibrated"].between(0, 5).all()
    table = pd.read_csv(out / "table.csv")
    assert table["pearson.value"].tolist() == pytest.approx([row["pearson"]["value"]
                                                             for row in rows])
    assert table["probes.negation"].between(0, 1).all()
    picture = image.imread(out / "figure.png")
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 20
    assert [part["encoder"] for part in found["unreached"]] == ["klue/roberta-base", "no/model"]
    last = caplog.messages[-1]
    assert last.endswith("could not give them: klue/roberta-base, no/model")


def test_run_and_users_pairs(command, competition, make_encoder, tmp_path):
    """A run is read as it records; labelled pairs of the user's keep their labels."""
    done(command, "stage=simcse", *small(make_encoder()), "encoder.pooling=cls")
    run = only(tmp_path / "runs/simcse")
    pairs = tmp_path / "mine.csv"
    pairs.write_text("id,sentence_1,sentence_2,label\n1,가나,나다,4.5\n2,가나,가나,5\n",
                     encoding="utf-8")
    done(command, "stage=compare", *small(make_encoder()), asked(run), f"pairs={pairs}")
    out = only(tmp_path / "runs/compare")
    (row,) = read_json(out / "compare.json")["encoders"]
    assert (row["encoder"], row["pooling"], row["max_length"]) == (run.name, "cls", 32)
    table = pd.read_csv(out / "pairs.csv")
    assert table["label"].tolist() == [4.5, 5]
    assert table[f"{run.name} x5"][1] == pytest.approx(5, abs=1e-4)


def test_collapsed_is_said(command, competition, make_encoder, tmp_path, caplog):
    """An encoder that maps every sentence to nearly the same vector."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "cone"
    shutil.copytree(make_encoder("bert"), folder)
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.output.LayerNorm.bias"] += 30
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    done(command, "stage=compare", *small(make_encoder()), asked("encoder", folder))
    rows = read_json(only(tmp_path / "runs/compare") / "compare.json")["encoders"]
    assert rows[1]["verdict"].startswith("collapsed, every sentence looks alike")
    assert "mean cosine 1.00" in rows[1]["verdict"]
    assert rows[1]["mean_cosine"] > 0.99 > rows[0]["mean_cosine"]


@pytest.mark.parametrize(("names", "message"), [
    (["klue/a", "klue/b"], "compare.encoders: expected at least one encoder that can be had, got "
                           "klue/a: the Hub cannot be reached"),
    ([], "compare.encoders: expected one or more different encoders, got []"),
    (["encoder", "encoder"], "compare.encoders: expected one or more different encoders"),
    (["klue/a:max"], "compare.encoders: expected PATH:POOLING with one of cls, "),
    (["./nowhere"], "compare.encoders: expected a run, a folder or a Hub id, got no folder ./now"),
    (["data"], "encoder.path=data: expected a Hugging Face encoder's folder")])
def test_refused(command, competition, make_encoder, tmp_path, names, message):
    """In one line; nothing is written."""
    said = refusal(command("stage=compare", *small(make_encoder()), asked(*names)))
    assert said.startswith(message)
    assert not (tmp_path / "runs/compare").exists()


def test_cross_encoders_and_unfinished_runs_are_refused(tmp_path):
    """They have no sentence vectors to be compared."""
    own = Contestant("own", "path")
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    (model / "head.json").write_text('{"head": "cross"}')
    manifest = model.parent / "manifest.json"
    for status, words in (("complete", "a cross-encoder"), ("running", "status 'running'")):
        manifest.write_text(json.dumps({"status": status, "files": {}}))
        with pytest.raises(UserError, match=words):
            contestants([str(model.parent)], own)
    manifest.write_text(json.dumps({"status": "complete", "files": {}}))
    (model / "head.json").write_text('{"head": "bi"}')
    assert contestants([str(model.parent)], own)[0].path == str(model)
    model.rename(tmp_path / "run" / "folds")
    with pytest.raises(UserError, match=r"compare\.encoders: expected a run with one model, got "):
        contestants([str(model.parent)], own)


def test_labels_differ(tmp_path):
    """Folders of one name are told apart by their whole names."""
    paths = [str(tmp_path / side / "model") for side in "ab"]
    for path in paths:
        Path(path).mkdir(parents=True)
    found = contestants(["encoder", *paths, "BM-K/KoSimCSE-roberta:cls"],
                        Contestant("own", "path", max_length=64))
    assert [one.label for one in found] == ["own", *paths, "KoSimCSE-roberta:cls"]
    assert (found[3].path, found[3].pooling, found[3].max_length) == (
        "BM-K/KoSimCSE-roberta", "cls", 64)


def test_default_encoders():
    """The configured one, klue's two, and KoSimCSE by the raw first token, as its authors do."""
    found = contestants(KEYS["compare.encoders"][0], Contestant("own", "path"))
    assert [(one.path, one.pooling) for one in found[1:]] == [
        ("klue/roberta-base", "mean"), ("klue/roberta-large", "mean"),
        ("BM-K/KoSimCSE-roberta", "cls"), ("BM-K/KoSimCSE-roberta-multitask", "cls")]


def test_hub_is_asked_once(monkeypatch):
    """An error that it answers with is an answer; no network and HF_HUB_OFFLINE are none."""
    asked_for = []

    def raising(error):
        def urlopen(request, timeout):
            asked_for.append((request.full_url, timeout))
            raise error
        return urlopen

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for error, is_open in ((HTTPError("", 403, "", {}, None), True), (URLError("none"), False),
                           (TimeoutError(), False)):
        monkeypatch.setattr(hub, "urlopen", raising(error))
        assert hub.answers() is is_open
    assert asked_for == [(constants.ENDPOINT, hub.PATIENCE)] * 3
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not hub.answers()
    assert len(asked_for) == 3


def test_cached_model_is_used_offline(make_encoder, monkeypatch):
    """A model that was brought once is loaded though the Hub cannot be reached."""
    monkeypatch.setattr(hub, "cached", lambda name: make_encoder("bert"))
    encoder = Contestant("x", "some/model", "cls", max_length=16).load(is_hub_open=False)
    assert encoder.reading.pooling == "cls"
    assert encoder.width == 32


def test_nothing_cached(tmp_path, monkeypatch):
    """No copy, or no name that the Hub could have."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert hub.cached("no/model") is None
    assert hub.cached("a/b/c") is None
