"""Loss spikes: few false alarms, planted ones found; batches made anew are those of the training.

python -m pytest tests/test_diagnostics_curves.py
"""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from test_ablate import write_nli
from toy import done, only, read_json, small

from pipeline.data import read_competition
from pipeline.diagnostics.curves import curves, stage, thinned
from pipeline.diagnostics.evidence import chain, read_settings
from pipeline.diagnostics.spikes import FEWEST, batches, robust_z, spikes, trend
from pipeline.encoder import load_encoder
from pipeline.files import sha256
from pipeline.history import read_history
from pipeline.runs import write_manifest


def falling(n: int, seed: int) -> np.ndarray:
    """A loss that falls and is noisier at the start, with a skewed noise."""
    random = np.random.default_rng(seed)
    return (0.5 + 3 * np.exp(-np.arange(n) / 100)) * random.gamma(25, 1 / 25, n)


def test_trend():
    """The running median: a single leap does not move it."""
    losses = np.full(60, 2.0)
    losses[30] = 50
    assert trend(losses).tolist() == [2.0] * 60
    assert trend(np.array([3.0])).tolist() == [3.0]


def test_steep_start_is_no_spike():
    """A loss that falls fast in its first steps, as after a random head, has no spike there."""
    losses = falling(60, 9) + 20 * np.exp(-np.arange(60) / 2)
    assert spikes(np.arange(1, 61), losses) == []


def test_few_false_alarms():
    """A hundred quiet trainings of 500 steps have next to no spikes."""
    found = sum(len(spikes(np.arange(1, 501), falling(500, seed))) for seed in range(100))
    assert found <= 3


@pytest.mark.parametrize("place", [5, 100, 437, 499])
def test_planted_spike(place):
    """A loss four times its neighbours' is found, whether early or late, and alone."""
    losses = falling(500, 7)
    expected = trend(losses)[place]
    losses[place] = 4 * expected
    found = spikes(np.arange(1, 501), losses)
    assert [spike["step"] for spike in found] == [place + 1]
    assert found[0]["loss"] == losses[place]
    assert found[0]["trend"] == pytest.approx(expected, rel=0.2)
    assert found[0]["z"] > 7


def test_spikes_are_sorted_and_limited():
    """The largest first, at most as many as asked for; a dip is no spike."""
    losses = falling(400, 8)
    losses[[50, 150, 250]] *= [20, 40, 30]
    losses[350] /= 50
    assert [spike["step"] for spike in spikes(np.arange(400), losses, most=2)] == [150, 250]


def test_constant_and_negative_and_short():
    """No spread: only what differs stands out; losses below 0 are not taken the logarithm of."""
    losses = np.full(50, 1.0)
    assert not robust_z(losses).any()
    losses[20] = 3
    assert [spike["step"] for spike in spikes(np.arange(50), losses)] == [20]
    negative = np.random.default_rng(0).normal(-0.5, 0.05, 100)
    negative[60] = 2
    assert [spike["step"] for spike in spikes(np.arange(100), negative)] == [60]
    assert spikes(np.arange(FEWEST - 1), np.arange(FEWEST - 1.0)) == []


def test_thinned():
    """A long curve is thinned evenly; its first, last and marked steps stay."""
    kept = thinned(np.arange(1, 100_001), {4321})
    assert len(kept) in (2000, 2001)
    assert {0, 4320, 99_999} <= set(kept)
    assert thinned(np.arange(7), set()).tolist() == list(range(7))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Keeps the chain that the tests below look at."""
    return tmp_path_factory.mktemp("chain")


@pytest.fixture
def trained(command, competition, make_encoder, tmp_path, cache):
    """A finished simcse → nli → sts chain of more than an epoch each: the last run's folder."""
    write_nli(tmp_path / "nli")
    if (cache / "runs").exists():
        shutil.copytree(cache / "runs", tmp_path / "runs")
    else:
        done(command, "stage=sts", *small(
            make_encoder(), "chain=[simcse,nli,sts]", "data.nli_dir=nli", "simcse.max_steps=24",
            "simcse.batch_size=24", "nli.max_steps=5", "nli.batch_size=2", "sts.max_steps=9",
            "nli.eval_every=5", "simcse.eval_every=24", "sts.eval_every=9"))
        shutil.copytree(tmp_path / "runs", cache / "runs")
    return only(tmp_path / "runs/sts")


def test_batches_are_those_of_the_training(trained, competition, make_encoder):
    """The history holds every step's real tokens: those of the batch that is made anew."""
    data = read_competition(competition)
    encoder = load_encoder(str(make_encoder()), max_length=32)
    for folder in chain(trained):
        made = batches(folder, read_json(folder / "manifest.json"),
                       read_settings(folder / "config.yaml"), data)
        name = folder.parent.name
        steps = [line for line in read_history(folder / "history.jsonl") if "loss" in line]
        assert len(steps) > len(made.epoch(0))
        for line in steps:
            rows = made.batch(line["step"])
            if name == "sts":
                lengths = encoder.tokens([row[:2] for row in rows]).lengths
            else:
                lengths = encoder.tokens([text for row in rows for text in row if text]).lengths
            assert line["tokens"] == lengths.sum() * (2 if name == "simcse" else 1), name


def test_curves(trained, competition):
    """Every stage of the chain with its series; a spike comes with its batch's sentences."""
    simcse = only(trained.parent.parent / "simcse")
    lines = read_history(simcse / "history.jsonl")
    for line in lines:
        if line.get("step") == 17 and "loss" in line:
            line["loss"] *= 1000
    (simcse / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = read_json(simcse / "manifest.json")  # as if the run had written it
    manifest["files"]["history.jsonl"] = sha256(simcse / "history.jsonl")
    write_manifest(simcse, manifest)
    data = read_competition(competition)
    found = curves(trained, data)
    assert [part["stage"] for part in found] == ["simcse", "nli", "sts"]
    first = found[0]
    assert first["steps"] == 24
    assert first["step"] == list(range(1, 25))
    assert set(first["geometry"]) == {"alignment", "uniformity", "mean_cosine"}
    assert first["geometry"]["uniformity"]["step"] == [0, 10, 20, 24]
    assert found[2]["eval"]["pearson"]["step"] == [0, 9]
    spike = first["spikes"][0]
    assert spike["step"] == 17
    assert len(spike["batch"]) == 24
    known = set(pd.concat([data.train, data.dev, data.test])[["sentence_1", "sentence_2"]]
                .to_numpy().ravel())
    assert all(text in known for (text,) in spike["batch"])


def test_changed_data_have_no_batches(trained, competition):
    """Sentences that are not those of the training: the spike stays, its batch is unknown."""
    simcse = only(trained.parent.parent / "simcse")
    data = read_competition(competition)
    data.test.loc[0, "sentence_1"] = "다른 문장"
    for folder, known in ((simcse, False), (trained, True)):
        made = batches(folder, read_json(folder / "manifest.json"),
                       read_settings(folder / "config.yaml"), data)
        assert (made is not None) == known
    for name, value in (("folds", 5), ("zeros", 0.5)):
        manifest = read_json(trained / "manifest.json")
        manifest["shape"]["settings"][name] = value
        assert batches(trained, manifest, {}, data) is None


def test_lost_runs_and_histories(trained, competition):
    """A chain whose first run is gone begins with the next; an empty history has no curve."""
    shutil.rmtree(trained.parent.parent / "simcse")
    assert [path.parent.name for path in chain(trained)] == ["nli", "sts"]
    (trained / "history.jsonl").write_text("")
    part = stage(trained, read_competition(competition))
    assert (part["steps"], part["loss"], part["spikes"]) == (0, [], [])
