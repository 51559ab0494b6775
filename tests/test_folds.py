"""Folds: a model each, out-of-fold predictions, their mean, and what is reused after a stop.

python -m pytest tests/test_folds.py
"""

import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from refusal import refusal
from scipy import stats
from toy import done, only, read_csv, read_json, small

import run
from pipeline import calibration
from pipeline.checkpoint import State
from pipeline.data import SENTENCES, read_competition
from pipeline.heads import load_scorer, raw_scores, to_labels
from pipeline.splits import folds, groups
from pipeline.stages import fitting, sts

K = 3
WORDS = ["chain=[sts]", f"sts.folds={K}", "sts.max_steps=3", "sts.learning_rate=3e-3",
         "sts.swap=true", "sts.copies=0.1", "sts.source_token=true", "sts.both_orders=true",
         "encoder.special_tokens=[<PERSON>]"]


class Done:
    """A finished run with folds, and which pairs each of its models was trained on and held."""

    def __init__(self, root: Path, encoder: Path, *words: str) -> None:
        self.root, self.trained, self.held = root, [], []
        self.data = root / "data"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fitting, "objective", self.spy(fitting.objective, self.trained, 3))
            patch.setattr(sts, "fit", self.spy(sts.fit, self.held, 5))
            assert run.main(["stage=sts", *small(encoder, *WORDS, *words, data=self.data),
                             f"runs_dir={root}/runs", f"submissions_dir={root}/submissions"]) == 0
        self.folder = only(root / "runs/sts")
        self.competition = read_competition(self.data)
        self.members = sorted(self.folder.glob("folds/sts/fold*"))

    @staticmethod
    def spy(function, seen, place):
        """The function, which first notes one of its arguments."""
        def noted(*args):
            seen.append(args[place])
            return function(*args)

        return noted

    def table(self, name: str, member: int | None = None) -> pd.DataFrame:
        """A table of predictions, of the run or of one fold's."""
        folder = self.folder if member is None else self.members[member]
        return read_csv(folder / f"predictions/{name}.csv")


@pytest.fixture(scope="module")
def make_done(make_encoder, tmp_path_factory):
    """`make_done("sts.use_dev=true")`: such a run, made once."""
    made = {}

    def make(*words: str) -> Done:
        if words not in made:
            root = tmp_path_factory.mktemp("folds")
            (root / "data").mkdir()
            for name, rows in (("train", 48), ("dev", 24), ("test", 16)):
                table = pd.read_csv(run.__file__.replace("run.py", f"data/sample/{name}.csv"),
                                    dtype=str, keep_default_na=False)
                table.head(rows).to_csv(root / f"data/{name}.csv", index=False)
            made[words] = Done(root, make_encoder(), *words)
        return made[words]

    return make


@pytest.fixture(params=[(), ("sts.use_dev=true",)], ids=["train", "train+dev"])
def finished(request, make_done) -> Done:
    """A finished run, its folds of train alone and of train and dev."""
    return make_done(*request.param)


def rows_of(finished: Done) -> pd.DataFrame:
    """The pairs that the folds are made of, in the order of oof.csv."""
    parts = [finished.competition.train]
    if len(finished.table("oof")) > 48:
        parts.append(finished.competition.dev)
    return pd.concat(parts, ignore_index=True)


def test_out_of_fold_rows(finished):
    """Train's rows (then dev's) in their order, each once, with the fold that held it."""
    rows, oof = rows_of(finished), finished.table("oof")
    assert list(oof.columns) == ["id", "fold", "label", "prediction"]
    assert oof["id"].tolist() == rows["id"].tolist()
    assert oof["label"].tolist() == rows["label"].tolist()
    assert (oof["fold"] == folds(rows, K, 42) + 1).all()
    assert set(oof["fold"]) == {1, 2, 3}
    assert len(finished.members) == len(finished.held) == K
    for number, held in enumerate(finished.held):
        assert held["id"].tolist() == oof.loc[oof["fold"] == number + 1, "id"].tolist()


def test_no_model_saw_what_it_predicts(finished):
    """No sentence of a held pair is trained on, not even by a swapped twin or a copy."""
    rows = rows_of(finished)
    for trained, held in zip(finished.trained, finished.held, strict=True):
        seen = set(trained[SENTENCES].to_numpy().ravel())
        assert not seen & set(held[SENTENCES].to_numpy().ravel())
        assert not any("-swapped" in name or "-copy-" in name for name in held["id"])
        assert len(trained) == 2 * (len(rows) - len(held) + round(0.1 * (len(rows) - len(held))))
        together = groups(pd.concat([trained, held], ignore_index=True))
        assert not set(together[:len(trained)]) & set(together[len(trained):])


def scored(member: Path, frame: pd.DataFrame) -> np.ndarray:
    """The saved model's predictions."""
    scorer = load_scorer(member / "model")
    return to_labels(scorer, raw_scores(scorer, scorer.pairs(frame), torch.device("cpu")))


def test_predictions_are_the_saved_models(finished):
    """oof.csv has each row's from the model that held it; test is the mean of all models."""
    rows, oof = rows_of(finished), finished.table("oof")
    everything = np.array([scored(member, rows) for member in finished.members])  # (K, n)
    own = everything[oof["fold"] - 1, np.arange(len(rows))]
    assert oof["prediction"].to_numpy() == pytest.approx(own, abs=2e-5)
    others = everything[oof["fold"] % K, np.arange(len(rows))]
    assert np.abs(others - own).max() > 1e-3
    tests = [scored(member, finished.competition.test) for member in finished.members]
    assert finished.table("test")["prediction"].to_numpy() == pytest.approx(
        np.mean(tests, axis=0), abs=2e-5)
    assert np.ptp(tests, axis=0).max() > 1e-3
    submission = read_csv(only(finished.root / "submissions", "*.csv"))
    assert submission["target"].to_numpy() == pytest.approx(
        finished.table("test")["prediction"].to_numpy(), abs=1e-6)


def test_dev_is_out_of_fold_or_the_mean(make_done):
    """With use_dev dev's predictions are its rows of oof.csv, else the mean of all models."""
    both, alone = make_done("sts.use_dev=true"), make_done()
    assert both.table("dev")["prediction"].tolist() == both.table("oof")["prediction"].tolist()[48:]
    assert both.table("dev")["id"].tolist() == both.competition.dev["id"].tolist()
    mean = np.mean([alone.table("dev", member)["prediction"] for member in range(K)], axis=0)
    assert alone.table("dev")["prediction"].to_numpy() == pytest.approx(mean, abs=1e-6)
    assert not (both.members[0] / "predictions/dev.csv").exists()


@pytest.mark.parametrize("words", [(), ("sts.use_dev=true",),
                                   ("sts.use_dev=true", "sts.held=dev")],
                         ids=["train", "train+dev", "dev"])
def test_calibrated(make_done, words):
    """Fitted on dev's predictions as they were: dev by fits that did not see it, others by one."""
    plain, bent = make_done(*words), make_done(*words, "sts.calibrate=surface")
    before, after = ({path.stem: read_csv(path)["prediction"].to_numpy()
                      for path in (run.folder / "predictions").iterdir()} for run in (plain, bent))
    data = bent.competition
    dev, mapped = calibration.fitted("surface", before["dev"], data.dev)
    n = len(data.train)
    assert after["dev"] == pytest.approx(dev, abs=1e-4)
    assert after["test"] == pytest.approx(mapped(before["test"], data.test), abs=1e-4)
    if "sts.held=dev" in words:
        assert "oof" not in after
        return
    assert after["oof"][:n] == pytest.approx(mapped(before["oof"][:n], data.train), abs=1e-4)
    assert after["oof"][n:] == pytest.approx(dev[:len(after["oof"]) - n], abs=1e-4)


def test_held_out_of_dev_alone(make_done):
    """Every model trains on all of train and on dev's other folds; dev.csv is out of fold."""
    run = make_done("sts.use_dev=true", "sts.held=dev")
    train, dev = run.competition.train, run.competition.dev
    numbers = folds(dev, K, 42)
    for number, (trained, held) in enumerate(zip(run.trained, run.held, strict=True)):
        assert held["id"].tolist() == dev["id"][numbers == number].tolist()
        own = [name for name in trained["id"] if "-swapped" not in name and "-copy-" not in name]
        assert own == [*train["id"], *dev["id"][numbers != number]]
    everything = np.array([scored(member, dev) for member in run.members])
    assert run.table("dev")["prediction"].to_numpy() == pytest.approx(
        everything[numbers, np.arange(len(dev))], abs=2e-5)
    tests = [run.table("test", member)["prediction"] for member in range(K)]
    assert run.table("test")["prediction"].to_numpy() == pytest.approx(np.mean(tests, axis=0),
                                                                       abs=1e-6)
    assert not (run.folder / "predictions/oof.csv").exists()
    metrics = read_json(run.folder / "metrics.json")
    assert "oof" not in metrics
    assert [found["n"] for found in metrics["folds"]] == np.bincount(numbers).tolist()


def test_metrics(finished):
    """Out of fold, of dev and of every fold: those of scipy over the tables."""
    metrics = read_json(finished.folder / "metrics.json")
    for name in ("oof", "dev"):
        table = finished.table(name)
        assert metrics[name]["n"] == len(table)
        value = stats.pearsonr(table["label"], table["prediction"]).statistic
        assert metrics[name]["pearson"]["value"] == pytest.approx(value, abs=1e-4)
    for member, found in enumerate(metrics["folds"]):
        table = finished.table("held", member)
        value = stats.pearsonr(table["label"], table["prediction"]).statistic
        assert found == {"n": len(table), "pearson": pytest.approx(value, abs=1e-4)}
    seconds = [read_json(member / "manifest.json")["seconds"] for member in finished.members]
    assert read_json(finished.folder / "manifest.json")["seconds"] == pytest.approx(sum(seconds),
                                                                                    abs=0.06)


def test_special_tokens_are_in_every_model(finished):
    """<PERSON> and the sources are one token each in the saved models."""
    scorer = load_scorer(finished.members[0] / "model")
    sources = sorted(set(finished.trained[0]["source"]))
    assert scorer.reading.sources == sources
    for text in ["<PERSON>", *(f"[{source}]" for source in sources)]:
        ids = scorer.encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert len(ids) == 1
        assert ids[0] != scorer.encoder.tokenizer.unk_token_id


def test_predict_is_the_mean(finished, command, tmp_path):
    """predict with the run gives its own predictions, with one fold's run that fold's.

    Sources, special tokens and both orders are read as in training.
    """
    cases = [("test", finished.folder, finished.table("test")),
             ("test", finished.members[1], finished.table("test", 1))]
    if (finished.members[1] / "predictions/dev.csv").exists():
        cases += [("dev", finished.folder, finished.table("dev")),
                  ("dev", finished.members[1], finished.table("dev", 1))]
    for name, folder, expected in cases:
        done(command, "stage=predict", f"run={folder}", f"pairs={finished.data}/{name}.csv",
             "precision=fp32")
        found = read_csv(tmp_path / f"submissions/{folder.name}-{name}.csv")
        assert found["id"].tolist() == expected["id"].tolist()
        assert found["target"].to_numpy() == pytest.approx(expected["prediction"].to_numpy(),
                                                           abs=2e-5)


def written(folder: Path) -> dict[str, int]:
    """When each file was written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns
            for path in folder.rglob("*") if path.is_file() and path.suffix != ".txt"}


def test_second_run_reuses_all(make_done, make_encoder, command, caplog):
    """The same command trains nothing and writes nothing in the run."""
    finished = make_done()
    before = written(finished.folder)
    done(command, "stage=sts", *small(make_encoder(), *WORDS, data=finished.data),
         f"runs_dir={finished.root}/runs")
    assert f"sts: reusing {finished.folder}" in caplog.text
    assert caplog.text.count("reusing") == 1
    assert written(finished.folder) == before


def test_killed_in_the_second_fold(make_done, make_encoder, command, tmp_path, monkeypatch,
                                   caplog):
    """The first fold is reused, the second goes on at its step; the end is the undisturbed one."""
    finished, calls, objective = make_done(), [], fitting.objective

    def stopping(*args):
        loss = objective(*args)

        def counted(model, rows):
            calls.append(rows)
            if len(calls) == 5:  # the second step of the second fold
                os.kill(os.getpid(), signal.SIGINT)
            return loss(model, rows)

        return counted

    monkeypatch.setattr(fitting, "objective", stopping)
    words = small(make_encoder(), *WORDS, data=finished.data)
    code, _, err = command("stage=sts", *words)
    assert code == 130
    assert err.splitlines()[-1].startswith("error: stopped by Ctrl-C after step 2")
    run_folder = only(tmp_path / "runs/sts")
    assert run_folder.name == finished.folder.name
    first, second = sorted(run_folder.glob("folds/sts/fold*"))
    assert not (run_folder / "predictions").exists()
    assert not (tmp_path / "submissions").exists()
    before = written(first)
    assert read_json(second / "manifest.json")["status"] == "running"
    caplog.clear()
    done(command, "stage=sts", *words)
    assert len(calls) == K * 3
    assert caplog.text.count("reusing") == 1
    assert f"reusing {first.relative_to(tmp_path)}" in caplog.text
    assert "resumed at step 2 of 3" in caplog.text
    assert written(first) == before
    for name in ("oof", "dev", "test"):
        assert (run_folder / f"predictions/{name}.csv").read_bytes() == (
            finished.folder / f"predictions/{name}.csv").read_bytes()


def test_force_trains_every_fold_anew(make_encoder, command, competition, tmp_path, monkeypatch):
    """force=true reuses no fold."""
    calls = faked(monkeypatch)
    for word in ("force=false", "force=true"):
        done(command, "stage=sts", *small(make_encoder(), "chain=[sts]", "sts.folds=2", word))
    assert len(calls) == 4
    assert len(list(only(tmp_path / "runs/sts").glob("folds/sts/fold*"))) == 2


def faked(monkeypatch) -> list[pd.DataFrame]:
    """Replaces fit: the n-th model predicts n for the first row that it is asked about, 0 else."""
    calls = []

    def fit(config, run, accelerator, start, pairs, held, asked):
        calls.append(held)
        run.model.mkdir(parents=True)
        (run.model / "weights").write_text(str(len(calls)), encoding="utf-8")
        return State(seconds=1.0), {
            name: np.eye(1, len(frame))[0] * len(calls) + np.arange(len(frame)) / 1000
            for name, frame in asked.items()}

    monkeypatch.setattr(sts, "fit", fit)
    return calls


def test_ids_that_train_and_dev_share(make_encoder, command, competition, tmp_path, monkeypatch):
    """Rows go by their place: dev's predictions are those of dev's rows, whatever their ids."""
    table = read_csv(competition / "dev.csv")
    table.assign(id=read_csv(competition / "train.csv")["id"].tolist()[:24]).to_csv(
        competition / "dev.csv", index=False)
    calls = faked(monkeypatch)
    done(command, "stage=sts", *small(make_encoder(), "chain=[sts]", "sts.folds=2",
                                      "sts.use_dev=true"))
    folder = only(tmp_path / "runs/sts") / "predictions"
    oof, dev, test = (read_csv(folder / f"{name}.csv") for name in ("oof", "dev", "test"))
    expected = np.zeros(72)
    for number, held in enumerate(calls):
        expected[held.index] = np.eye(1, len(held))[0] * (number + 1) + np.arange(len(held)) / 1000
    assert oof["prediction"].to_numpy() == pytest.approx(expected)
    assert dev["prediction"].to_numpy() == pytest.approx(expected[48:])
    assert oof["id"].duplicated().sum() == 24
    assert test["prediction"].to_numpy() == pytest.approx(
        np.eye(1, 16)[0] * 1.5 + np.arange(16) / 1000)


def test_damage_inside_a_fold(make_encoder, command, competition, tmp_path, monkeypatch, caplog):
    """A fold's log and lock do not count; a changed model of a fold is noticed and made again."""
    calls, words = faked(monkeypatch), small(make_encoder(), "chain=[sts]", "sts.folds=2")
    done(command, "stage=sts", *words)
    folder = only(tmp_path / "runs/sts")
    first = only(folder, "folds/sts/fold1-*")
    with open(first / "log.txt", "a", encoding="utf-8") as file:
        file.write("one more line\n")
    for lock in folder.glob("folds/sts/.*.lock"):
        lock.unlink()
    done(command, "stage=sts", *words)
    assert len(calls) == 2
    (first / "model/weights").write_text("other", encoding="utf-8")
    done(command, "stage=sts", *words)
    assert "/model/weights is missing or changed: the stage runs anew" in caplog.text
    assert len(calls) == 3, "the other fold was trained again"
    assert (first / "model/weights").read_text(encoding="utf-8") == "3"


def one_sentence(folder: Path) -> None:
    """All pairs of train share a sentence but for two: three groups."""
    table = read_csv(folder / "train.csv")
    table.loc[2:, "sentence_1"] = table.loc[2, "sentence_1"]
    table.to_csv(folder / "train.csv", index=False)


@pytest.mark.parametrize(("words", "edit", "message"), [
    (["sts.folds=1"], None, "sts.folds: expected 0 or from 2 to "),
    (["sts.folds=49"], None, "sts.folds: expected 0 or from 2 to "),
    (["sts.folds=51"], None, "sts.folds: expected 50 or less, got 51"),
    (["sts.folds=4"], one_sentence, "sts.folds: expected 0 or from 2 to 3, the number of groups "
                                    "of pairs that share no sentence, got 4"),
    (["sts.folds=2", "sts.held=dev"], None, "sts.held: expected all without sts.use_dev=true, got "
                                            "dev"),
    (["sts.folds=25", "sts.held=dev", "sts.use_dev=true"], None,
     "sts.folds: expected 0 or from 2 to 18, the number of groups"),
    (["sts.folds=2", "chain=[sts,nli]"], None, "sts.folds: expected 0 where nli follows sts"),
    (["sts.folds=2", "chain=[]"], None, "chain: expected distinct stages of "),
    (["sts.folds=2", "chain=[simcse]"], None, "chain: expected distinct stages of ")])
def test_refused(command, competition, make_encoder, tmp_path, words, edit, message):
    """Folds that cannot be made are one line that names the key; nothing is written."""
    if edit:
        edit(competition)
    assert refusal(command("stage=sts", *small(make_encoder(), "chain=[sts]", *words))).startswith(
        message)
    assert not list(tmp_path.glob("runs/*/*-*"))


@pytest.mark.parametrize(("keep", "warned"), [("best", True), ("last", False)])
def test_choosing_by_what_is_held_out_is_said(make_encoder, command, competition, caplog, keep,
                                              warned):
    """Each fold's best evaluation is one of the pairs that it then predicts."""
    done(command, "stage=sts", *small(make_encoder(), *WORDS, "sts.max_steps=1",
                                      f"sts.keep={keep}"))
    assert ("sts.keep=best takes each fold's best evaluation" in caplog.text) == warned
