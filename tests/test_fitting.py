"""One regression model: its loss by hand, what it is trained on, and that every key counts.

python -m pytest tests/test_fitting.py
"""

import itertools
import os
import signal
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from refusal import refusal, without
from safetensors.torch import load_file
from toy import done, equal, read_csv, small, timeless

from pipeline import hardware
from pipeline.calibration import SURFACE, cross_fitted
from pipeline.config import Config
from pipeline.data import SENTENCES, Competition, read_competition
from pipeline.encoder import load_encoder
from pipeline.errors import Stopped
from pipeline.heads import PairScorer, logistic_link
from pipeline.history import read_history
from pipeline.runs import Run
from pipeline.sections import Sts
from pipeline.stages import fitting
from pipeline.stages.chain import Start
from pipeline.stages.fitting import fit, objective, training_pairs

CPU = torch.device("cpu")
FRAME = pd.DataFrame({"label": [0.0, 5.0, 2.0, 3.0], "binary-label": [0.0, 1.0, 0.0, 1.0]})
ROWS = np.array([2, 1, 0])
TARGETS = np.array([0.4, 1.0, 0.0])  # label / 5 of those rows
FIRST = np.array([0.1, 0.7, 0.3, 0.0])  # each row's score in a first pass, and in a second
SECOND = np.array([0.2, 0.9, 0.3, 0.0])


class Asked:
    """Pairs as a model that only looks up scores sees them: a batch is its row numbers."""

    def batch(self, rows: np.ndarray) -> "Asked":
        """The rows."""
        self.rows = rows
        return self

    def to(self, device: torch.device) -> "Asked":
        """The rows."""
        return self


def looked_up(samples: int = 1):
    """A model: the first pass's scores, then the second's; sample k adds k / 10."""
    def model(batch: Asked) -> torch.Tensor:
        passes = np.split(batch.rows, len(batch.rows) // len(ROWS))
        scores = np.concatenate([table[rows] for table, rows in
                                 zip((FIRST, SECOND), passes, strict=False)])
        return torch.tensor(np.concatenate([scores + k / 10 for k in range(samples)]))

    return model


def loss_of(samples: int = 1, link: torch.nn.Module | None = None, **settings: object) -> float:
    """The objective's loss of the three rows."""
    settings = Sts(**{"loss": "mse", "dropout_samples": samples} | settings)
    loss = objective(settings, SimpleNamespace(link=link), Asked(), FRAME, CPU)
    return loss(looked_up(samples), ROWS).item()


def mse(scores: np.ndarray) -> float:
    """Mean squared error of the three rows' scores."""
    return float(((scores - TARGETS) ** 2).mean())


def test_plain_loss():
    """One pass, scores against label / 5."""
    assert loss_of() == pytest.approx(mse(FIRST[ROWS]))
    assert loss_of(loss="l1") == pytest.approx(np.abs(FIRST[ROWS] - TARGETS).mean())


def test_r_drop():
    """The mean of both passes' losses plus weight × their mean squared difference."""
    both = (mse(FIRST[ROWS]) + mse(SECOND[ROWS])) / 2
    difference = float(((FIRST - SECOND)[ROWS] ** 2).mean())
    assert difference > 0
    for weight in (0.5, 4.0):
        assert loss_of(r_drop=weight) == pytest.approx(both + weight * difference)


def test_dropout_samples():
    """The mean of the samples' losses, not the loss of their mean."""
    expected = np.mean([mse(FIRST[ROWS] + k / 10) for k in range(3)])
    assert loss_of(samples=3) == pytest.approx(expected)
    assert loss_of(samples=3) != pytest.approx(mse(FIRST[ROWS] + 0.1), rel=1e-3)


def test_r_drop_with_dropout_samples():
    """Passes are compared sample by sample."""
    both = np.mean([mse(table[ROWS] + k / 10) for table in (FIRST, SECOND) for k in range(2)])
    difference = float(((FIRST - SECOND)[ROWS] ** 2).mean())
    assert loss_of(samples=2, r_drop=3.0) == pytest.approx(both + 3 * difference)


def test_binary_loss():
    """Weight × cross-entropy of label ≥ 3, the data's threshold, under the link's logits."""
    link = logistic_link(2.5)
    torch.nn.init.constant_(link.weight, 4.0)
    torch.nn.init.constant_(link.bias, -2.0)
    logits = 4 * FIRST[ROWS] - 2
    classes = np.array([0, 1, 0])
    entropy = np.mean(np.log1p(np.exp(logits)) - classes * logits)
    found = loss_of(link=link, binary_weight=0.7)
    assert found == pytest.approx(mse(FIRST[ROWS]) + 0.7 * entropy, rel=1e-5)


def test_label_noise():
    """Noise on labels, not on label / 5, of the given spread and anew in every call."""
    torch.manual_seed(1)
    settings = Sts(loss="mse", label_noise=0.5)
    frame = pd.DataFrame({"label": np.full(20_000, 2.5)})
    loss = objective(settings, SimpleNamespace(link=None), Asked(), frame, CPU)
    rows = np.arange(20_000)
    values = [loss(lambda batch: torch.full((20_000,), 0.5), rows).item() for _ in range(2)]
    assert values == pytest.approx([(0.5 / 5) ** 2] * 2, rel=0.03)
    assert values[0] != values[1]


@pytest.fixture
def tables(competition) -> Competition:
    """The small competition, read."""
    return read_competition(competition)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("head", ["cross", "bi"])
def test_r_drop_of_a_real_model(make_encoder, tables, head, dropout):
    """Without dropout it adds nothing; with it the two passes differ."""
    frame = tables.train
    encoder = Start(str(make_encoder()), {}, "mean", max_length=32).load(dropout=dropout)
    scorer = PairScorer(encoder, head).train()
    if head == "cross":
        scorer.dropout.p = dropout
    pairs, values = scorer.pairs(frame), {}
    for weight in (0.0, 10.0):
        torch.manual_seed(0)
        loss = objective(Sts(head=head, r_drop=weight), scorer, pairs, frame, CPU)
        values[weight] = loss(scorer, np.arange(8)).item()
    torch.manual_seed(0)
    scores = scorer(pairs.batch(np.tile(np.arange(8), 2))).view(2, 8)
    base = fitting.REGRESSION["cosent" if head == "bi" else "mse"]
    targets = torch.tensor(frame["label"].head(8).to_numpy() / 5, dtype=torch.float32)
    expected = (base(scores[0], targets) + base(scores[1], targets)) / 2
    expected = expected + 10 * ((scores[0] - scores[1]) ** 2).mean()
    assert values[10.0] == pytest.approx(expected.item(), rel=1e-5)
    difference = (scores[0] - scores[1]).abs().max().item()
    assert (difference > 1e-4) == (dropout > 0)
    if not dropout:
        assert values[10.0] == pytest.approx(values[0.0], rel=1e-5)


def test_training_pairs(tables):
    """Copies of all zeros' sentences, then fewer zeros, then both orders of what is left."""
    frame = tables.train
    zeros = int((frame["label"] == 0).sum())
    found = training_pairs(Sts(copies=0.25, zeros=0.0, swap=True), frame, 1)
    assert len(found) == 2 * (48 + 12 - zeros)
    assert found["id"].is_unique
    assert (found["label"] == 0).sum() == 0
    copies = found[found["sentence_1"] == found["sentence_2"]]
    assert len(copies) == 24
    assert set(copies["sentence_1"]) <= set(frame.loc[frame["label"] == 0,
                                                      SENTENCES].to_numpy().ravel())
    pd.testing.assert_frame_equal(training_pairs(Sts(), frame, 1), frame)


def fitted(folder: Path, encoder: Path, tables: Competition,
           **settings: object) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """A model's weights and its predictions for dev, trained on train for four steps."""
    config = Config()
    config.sts = Sts(**{"max_steps": 4, "batch_size": 8, "learning_rate": 3e-3, "eval_every": 1}
                     | settings)
    accelerator = hardware.start("cpu", "fp32", config.seed, False)
    folder.mkdir(exist_ok=True)
    run = Run(folder, {"stage": "sts"})
    _, found = fit(config, run, accelerator, Start(str(encoder), {}, "mean", max_length=32),
                   tables.train, tables.dev, {"dev": tables.dev})
    tensors = load_file(run.model / "model.safetensors")
    if config.sts.head == "cross":
        tensors |= load_file(run.model / "head.safetensors")
    return tensors, found["dev"]


ELSEWHERE = {"folds", "use_dev", "held", "calibrate"}  # in test_folds.py, test_calibration.py
KEYS = {  # another value of every key of sts, and what else has to be set for both
    "epochs": (0.6, {"max_steps": 0}), "max_steps": (2, {}), "batch_size": (7, {}),
    "learning_rate": (2e-3, {}), "warmup_ratio": (0.6, {}), "weight_decay": (0.5, {}),
    "max_grad_norm": (0.1, {}), "eval_every": (2, {}), "patience": (1, {}), "head": ("bi", {}),
    "loss": ("l1", {}), "keep": ("last", {}), "ema": (0.9, {}), "layer_decay": (0.5, {}),
    "fgm": (0.5, {}), "awp": (0.05, {}), "r_drop": (1.0, {}), "dropout_samples": (2, {}),
    "binary_weight": (0.5, {}), "swap": (True, {}), "both_orders": (True, {}),
    "copies": (0.2, {}), "zeros": (0.0, {}), "flatten": (1.0, {}), "label_noise": (0.5, {}),
    "source_token": (True, {}), "dropout": (0.0, {}), "interpolate": (0.5, {})}


def test_every_key_is_here():
    """A new key needs its line above."""
    assert KEYS.keys() | ELSEWHERE == {item.name for item in fields(Sts)}


@pytest.fixture(scope="module")
def plain() -> dict:
    """What was trained without a key's other value, by the rest of the settings."""
    return {}


@pytest.mark.parametrize("name", KEYS)
def test_no_key_without_effect(name, plain, make_encoder, tables, tmp_path, monkeypatch):
    """Another value gives other predictions, and other weights but for what is read at the end.

    Evaluations follow a script, so that keep, patience and eval_every have something to choose.
    """
    def trained(folder: str, **settings: object) -> tuple:
        script = itertools.chain([0.0, 0.5, 0.4, 0.9], itertools.repeat(0.1))
        monkeypatch.setattr(fitting, "pearson", lambda raw, labels: next(script))
        return fitted(tmp_path / folder, make_encoder(), tables, **settings)

    value, rest = KEYS[name]
    if str(rest) not in plain:
        plain[str(rest)] = trained("plain", **rest)
    before, own = plain[str(rest)]
    after, found = trained("other", **rest | {name: value})
    assert np.isfinite(found).all()
    assert np.abs(found - own).max() > 1e-5
    assert equal(after, before) == (name == "both_orders")


def test_all_together_survive_a_stop(make_encoder, tables, tmp_path, monkeypatch):
    """Everything that draws at random or carries state goes on bit for bit."""
    settings = {"ema": 0.9, "fgm": 0.3, "r_drop": 1.0, "dropout_samples": 2, "binary_weight": 0.3,
                "label_noise": 0.3, "flatten": 0.8, "layer_decay": 0.8, "copies": 0.1,
                "zeros": 0.5, "swap": True, "source_token": True, "both_orders": True,
                "eval_every": 2, "max_steps": 6}
    whole, predictions = fitted(tmp_path / "whole", make_encoder(), tables, **settings)
    calls = []

    def stopping(*args):
        loss = objective(*args)

        def counted(model, rows):
            calls.append(rows)
            if len(calls) == 5:  # two a step: in the third
                os.kill(os.getpid(), signal.SIGINT)
            return loss(model, rows)

        return counted

    monkeypatch.setattr(fitting, "objective", stopping)
    with pytest.raises(Stopped):
        fitted(tmp_path / "torn", make_encoder(), tables, **settings)
    assert len(calls) == 6
    assert not (tmp_path / "torn/model").exists()
    again, found = fitted(tmp_path / "torn", make_encoder(), tables, **settings)
    assert len(calls) == 12
    assert equal(again, whole)
    assert np.array_equal(found, predictions)
    assert timeless(read_history(tmp_path / "torn/history.jsonl")) == timeless(
        read_history(tmp_path / "whole/history.jsonl"))


def no_zeros(path: Path) -> None:
    """No pair has label 0."""
    table = read_csv(path)
    table.assign(label=table["label"].clip(lower=0.5)).to_csv(path, index=False)


def one_class(path: Path) -> None:
    """Every binary-label is 0."""
    read_csv(path).assign(**{"binary-label": 0.0}).to_csv(path, index=False)


@pytest.mark.parametrize(("words", "edit", "message"), [
    (["sts.head=bi", "sts.swap=true"], None, "sts.swap: expected false with sts.head=bi"),
    (["sts.head=bi", "sts.both_orders=true"], None, "sts.both_orders: expected false with "),
    (["sts.head=bi", "sts.dropout_samples=2"], None, "sts.dropout_samples: expected 1 with "),
    (["sts.keep=last", "sts.patience=2"], None, "sts.patience: expected 0 with sts.keep=last"),
    (["sts.binary_weight=0.1"], without("binary-label"), "sts.binary_weight: expected 0 without "),
    (["sts.binary_weight=0.1"], one_class, "sts.binary_weight: expected 0 where binary-label "),
    (["sts.source_token=true"], without("source"), "sts.source_token: expected false without "),
    (["sts.copies=0.1"], no_zeros, "sts.copies: expected 0 without a pair of label 0"),
    (["sts.zeros=0.5"], no_zeros, "sts.zeros: expected 1 without pairs of label 0 and others"),
    (["sts.fgm=0.5", "sts.awp=0.01"], None, "sts.awp: expected 0 with sts.fgm, whose gradient it "
                                            "would discard, got 0.01"),
    (["sts.use_dev=true"], None, "sts.use_dev: expected sts.folds of 2 or more with it"),
    (["sts.ema=1"], None, "sts.ema: expected 0.99999 or less, got 1"),
    (["sts.layer_decay=0"], None, "sts.layer_decay: expected more than 0, got 0"),
    (["sts.loss=mse+l1"], None, "sts.loss: expected one of auto, mse"),
    (["encoder.special_tokens=['']"], None, "encoder.special_tokens: expected texts, got ")])
def test_refused(command, competition, make_encoder, tmp_path, words, edit, message):
    """What would have no effect or cannot be is one line that names the key; nothing is trained."""
    if edit:
        edit(competition / "train.csv")
    said = refusal(command("stage=sts", *small(make_encoder(), "chain=[sts]", *words)))
    assert said.startswith(message)
    assert not list(tmp_path.glob("runs/*/*/model"))


@pytest.mark.parametrize("share", [0.25, 0.7])
def test_interpolated_weights(share, make_encoder, tables, tmp_path):
    """Every kept weight lies that far on the way from the plain encoder's to the trained one's."""
    path = make_encoder()
    trained, _ = fitted(tmp_path / "all", path, tables, head="bi", keep="last")
    found, _ = fitted(tmp_path / "part", path, tables, head="bi", keep="last", interpolate=share)
    first = {name: p.detach() for name, p in load_encoder(
        str(path), max_length=32).backbone.named_parameters()}
    moved = 0.0
    for name, p in first.items():
        torch.testing.assert_close(found[name], torch.lerp(p, trained[name], share))
        moved += (trained[name] - p).abs().sum().item()
    assert moved > 0


@pytest.mark.parametrize("head", ["bi", "cross"])
@pytest.mark.parametrize("kind", ["monotone", "surface"])
def test_calibrated_run(head, kind, make_encoder, command, competition):
    """Dev's predictions are cross-fitted from the raw ones, predict applies the kept map."""
    words = small(make_encoder(), "chain=[sts]", f"sts.head={head}")
    done(command, "stage=sts", *words)
    done(command, "stage=sts", *words, f"sts.calibrate={kind}")
    plain, bent = sorted(Path("runs/sts").glob("*/"), key=lambda run: (
        run / "calibration.csv").exists())
    kept = pd.read_csv(bent / "calibration.csv")
    frame = read_competition(competition).dev
    raw, found = (pd.read_csv(run / "predictions/dev.csv")["prediction"] for run in (plain, bent))
    assert kept["raw"].to_numpy() == pytest.approx(raw.to_numpy(), abs=1e-5)
    expected = cross_fitted(kind, kept["raw"].to_numpy(), kept[SURFACE].to_numpy(), frame)
    assert found.to_numpy() == pytest.approx(expected, abs=1e-5)
    done(command, "stage=predict", f"run={bent}", f"pairs={competition / 'test.csv'}",
         "precision=fp32")  # as trained: the map is steep where few pairs are
    predicted = pd.read_csv(next(Path("submissions").glob("*-test.csv")))
    written = pd.read_csv(bent / "predictions/test.csv")
    assert predicted["target"].to_numpy() == pytest.approx(
        written["prediction"].to_numpy(), abs=1e-4)


@pytest.mark.parametrize(("rate", "warned"), [("1e-12", False), ("0.5", True)])
def test_training_that_harms_is_said(make_encoder, command, competition, caplog, rate, warned):
    """A bi head knows something before it is trained; where it ends below, that is said."""
    done(command, "stage=sts", *small(make_encoder(), "chain=[sts]", "sts.head=bi",
                                      "sts.max_steps=4", "sts.eval_every=4",
                                      f"sts.learning_rate={rate}"))
    assert ("no evaluation was better than the model that it began with" in caplog.text) == warned
