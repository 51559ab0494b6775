"""What the stage simcse learns from, measures and leaves behind.

python -m pytest tests/test_stages_simcse.py
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from toy import done, only, read_csv, read_json, small

from pipeline.data import read_competition
from pipeline.history import read_history


def sentences_of(run: Path) -> int:
    """How many sentences the run says it was trained on."""
    log = (run / "log.txt").read_text(encoding="utf-8")
    return int(re.search(r"simcse: (\d+) sentences", log)[1])


def test_simcse_measures_geometry(command, competition, make_encoder, tmp_path):
    """At step 0, every geometry_every steps and at evaluations, with numbers of unit vectors."""
    done(command, "stage=simcse", *small(
        make_encoder(), "simcse.max_steps=7", "simcse.geometry_every=3", "simcse.eval_every=5"))
    run = only(tmp_path / "runs/simcse")
    lines = read_history(run / "history.jsonl")
    found = {line["step"]: line["geometry"] for line in lines if "geometry" in line}
    assert list(found) == [0, 3, 5, 6, 7]
    for geometry in found.values():
        assert geometry.keys() == {"alignment", "uniformity", "mean_cosine"}
        assert 0 < geometry["alignment"] < 4
        assert -4 < geometry["uniformity"] < 0
        assert -1 < geometry["mean_cosine"] < 1
    assert len({geometry["uniformity"] for geometry in found.values()}) == 5
    metrics = read_json(run / "metrics.json")
    assert metrics["before"]["geometry"] == lines[0]["geometry"]
    assert metrics["geometry"] == pytest.approx(found[metrics["best_step"]])


def test_simcse_learns_from_the_competitions_sentences(command, competition, make_encoder,
                                                       tmp_path):
    """The loss falls, the space spreads, and the saved model has the encoder's own dropout."""
    done(command, "stage=simcse", *small(
        make_encoder(), "simcse.max_steps=30", "simcse.eval_every=30", "simcse.dropout=0.3"))
    run = only(tmp_path / "runs/simcse")
    lines = read_history(run / "history.jsonl")
    losses = [line["loss"] for line in lines if "loss" in line]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.2
    spread = [line["geometry"]["uniformity"] for line in lines if "geometry" in line]
    assert spread[-1] < spread[0] - 0.1
    assert read_json(run / "model/config.json")["hidden_dropout_prob"] == 0.1
    assert read_json(run / "model/sentence_encoder.json")["max_length"] == 32
    before = load_file(make_encoder() / "model.safetensors")
    after = load_file(run / "model/model.safetensors")
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert len(changed) > 20


@pytest.mark.parametrize(("drop_last", "steps"), [("true", 10), ("false", 11)])
def test_drop_last(command, competition, make_encoder, tmp_path, drop_last, steps):
    """An epoch's last partial batch is used or left out."""
    sets = read_competition(competition)
    texts = {text for frame in (sets.train, sets.dev, sets.test)
             for column in ("sentence_1", "sentence_2") for text in frame[column]}
    size = len(texts) // 10 - (len(texts) % 10 == 0)
    assert len(texts) // size == 10
    assert len(texts) % size
    done(command, "stage=simcse", *small(
        make_encoder(), "simcse.max_steps=0", "simcse.epochs=1", "simcse.eval_every=0.5",
        f"simcse.batch_size={size}", f"simcse.drop_last={drop_last}"))
    run = only(tmp_path / "runs/simcse")
    lines = [line for line in read_history(run / "history.jsonl") if "loss" in line]
    assert read_json(run / "metrics.json")["steps"] == len(lines) == steps
    assert sentences_of(run) == len(texts)
    assert (lines[-1]["tokens"] < min(line["tokens"] for line in lines[:-1])) == (steps == 11)


def test_extra_sentences(command, competition, make_encoder, tmp_path):
    """Sentences of a .txt and of a .csv are used, each once, and make another run."""
    words = small(make_encoder())
    done(command, "stage=simcse", *words)
    plain = only(tmp_path / "runs/simcse")
    count = sentences_of(plain)
    known = read_csv(competition / "train.csv")["sentence_1"][0]
    lines = f"처음 보는 문장\n\n또 다른 문장\n{known}\n"
    (tmp_path / "more.txt").write_text(lines, encoding="utf-8")
    pd.DataFrame({"id": ["1", "2"], "text": ["셋째 문장", "처음 보는 문장"]}).to_csv(
        tmp_path / "more.csv", index=False)
    done(command, "stage=simcse", *words, "data.extra=[more.txt,more.csv]")
    run = next(path for path in (tmp_path / "runs/simcse").glob("*-*") if path != plain)
    assert sentences_of(run) == count + 3


def test_no_pair_above_4(command, competition, make_encoder, tmp_path):
    """Without positive pairs in dev alignment is undefined, and only alignment."""
    path = competition / "dev.csv"
    table = read_csv(path)
    table.assign(label=table["label"].clip(upper=4)).to_csv(path, index=False)
    done(command, "stage=simcse", *small(make_encoder()))
    run = only(tmp_path / "runs/simcse")
    geometry = read_json(run / "metrics.json")["geometry"]
    assert geometry["alignment"] is None
    assert geometry["uniformity"] < 0


def test_threshold_of_positives(command, competition, make_encoder, tmp_path):
    """Another threshold measures another alignment in a run of its own, with the same weights."""
    words = small(make_encoder(), "simcse.max_steps=2")
    done(command, "stage=simcse", *words)
    first = only(tmp_path / "runs/simcse")
    done(command, "stage=simcse", *words, "data.positive_above=2.5")
    other = next(path for path in (tmp_path / "runs/simcse").glob("*-*") if path != first)
    one, two = (read_json(path / "metrics.json")["before"]["geometry"] for path in (first, other))
    assert one["alignment"] != two["alignment"]
    manifests = [read_json(path / "manifest.json") for path in (first, other)]
    assert "measured" not in manifests[0]["shape"]
    assert manifests[1]["shape"]["measured"] == {"positive_above": 2.5}
    assert len({part["files"]["model/model.safetensors"] for part in manifests}) == 1
    assert "measuring the geometry took" in (first / "log.txt").read_text(encoding="utf-8")


def test_cls_mlp_is_trained_but_not_saved(command, competition, make_encoder, tmp_path):
    """SimCSE's head serves training only: the saved model pools by the first token."""
    done(command, "stage=simcse", *small(make_encoder(), "encoder.pooling=cls_mlp"))
    run = only(tmp_path / "runs/simcse")
    assert read_json(run / "model/sentence_encoder.json")["pooling"] == "cls"
    assert not [name for name in load_file(run / "model/model.safetensors") if "mlp" in name]
