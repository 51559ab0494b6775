"""The stages that look at finished work: predict and check submission=FILE.

python -m pytest tests/test_stages_finished.py
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from toy import done, finished_chain, only, read_csv, read_json, small

from pipeline.data import read_pairs


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> dict[str, Path]:
    """Where the finished chains are kept between the tests, one for each head."""
    return {head: tmp_path_factory.mktemp(head) for head in ("cross", "bi")}


@pytest.fixture(params=["cross", "bi"])
def finished(request, command, competition, make_encoder, tmp_path, cache) -> Path:
    """The folder of a finished sts run."""
    words = small(make_encoder(), f"sts.head={request.param}", "sts.learning_rate=3e-3",
                  "sts.max_steps=10")
    finished_chain(command, words, tmp_path, cache[request.param])
    return only(tmp_path / "runs/sts")


def predicted(tmp_path: Path, run: Path, name: str) -> pd.DataFrame:
    """What predict wrote for a file of this name."""
    return read_csv(tmp_path / f"submissions/{run.name}-{name}.csv")


def test_predict_reproduces_the_run(command, finished, tmp_path, caplog):
    """On dev.csv: the predictions, scores and intervals that the run wrote itself."""
    caplog.clear()
    done(command, "stage=predict", f"run={finished}", "pairs=data/dev.csv", "precision=fp32")
    table, own = predicted(tmp_path, finished, "dev"), read_csv(finished / "predictions/dev.csv")
    assert table["id"].tolist() == own["id"].tolist()
    assert table["target"].to_numpy() == pytest.approx(own["prediction"].to_numpy(), abs=1e-4)
    assert table["target"].nunique() > 8
    origin = read_json(tmp_path / f"submissions/{finished.name}-dev.json")
    assert origin["runs"] == [str(finished)]
    assert origin["pairs"] == "data/dev.csv"
    metrics = read_json(finished / "metrics.json")["dev"]
    assert origin["scores"]["n"] == 24
    for name in ("pearson", "spearman"):
        assert origin["scores"][name] == pytest.approx(metrics[name], abs=1e-4)
    value = stats.pearsonr(own["label"], own["prediction"]).statistic
    assert f"dev.csv Pearson  {value:.4f}" in caplog.text


def test_predict_on_foreign_pairs(command, finished, tmp_path, caplog):
    """Unlabelled pairs in another order get a row each, in their order, and no scores."""
    test = read_pairs(Path("data/test.csv"), False)
    swapped = pd.DataFrame({"id": test["id"], "sentence_2": test["sentence_2"],
                            "sentence_1": test["sentence_1"]})[::-1]
    swapped.to_csv("mine.csv", index=False)
    caplog.clear()
    done(command, "stage=predict", f"run={finished}/", "pairs=mine.csv", "precision=fp32")
    table = predicted(tmp_path, finished, "mine")
    assert table["id"].tolist() == swapped["id"].tolist()
    own = read_csv(finished / "predictions/test.csv").set_index("id")["prediction"]
    assert table["target"].to_numpy() == pytest.approx(
        own[table["id"]].to_numpy(), abs=1e-4)
    assert "Pearson" not in caplog.text
    assert "scores" not in read_json(tmp_path / f"submissions/{finished.name}-mine.json")


@pytest.mark.parametrize(("words", "expected"), [
    (["pairs=data/dev.csv"], "run: expected the folder of a finished run, got ''"),
    (["run=nowhere", "pairs=data/dev.csv"], "run: expected the folder of a finished run"),
    (["run=RUN"], "pairs: expected a CSV"),
    (["run=RUN", "pairs=none.csv"], "none.csv: expected a file, got none"),
    (["run=SIMCSE", "pairs=data/dev.csv"], "expected a model that scores pairs"),
    (["run=TORN", "pairs=data/dev.csv"], "with status 'running'")])
@pytest.mark.parametrize("finished", ["cross"], indirect=True)
def test_predict_errors(command, finished, tmp_path, words, expected):
    """Wrong runs and wrong files are named in one line."""
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "manifest.json").write_text('{"status": "running"}', encoding="utf-8")
    places = {"RUN": finished, "SIMCSE": only(tmp_path / "runs/simcse"), "TORN": torn}
    for name, place in places.items():
        words = [word.replace(f"run={name}", f"run={place}") for word in words]
    code, _, err = command("stage=predict", *words)
    assert code == 2
    assert err.startswith("error: ")
    assert expected in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("finished", ["cross"], indirect=True)
def test_check_accepts_the_submission(command, finished, tmp_path):
    """The stage's own submission is correct, in whatever order its rows stand."""
    path = only(tmp_path / "submissions", "*.csv")
    target = read_csv(path)["target"]
    out = done(command, "stage=check", "data.dir=data", f"submission={path}")
    assert f"correct: 16 ids of test.csv, each once, targets from {target.min():.3f} to " in out
    read_csv(path)[::-1].to_csv(path, index=False)
    assert "correct: 16 ids" in done(command, "stage=check", "data.dir=data", f"submission={path}")


def foreign(table: pd.DataFrame) -> None:
    """An id that the test set does not have."""
    table.loc[2, "id"] = "another-id"


def twice(table: pd.DataFrame) -> None:
    """One id in two rows."""
    table.loc[5, "id"] = table.loc[4, "id"]


def too_high(table: pd.DataFrame) -> None:
    """A target above 5."""
    table.loc[3, "target"] = 5.01


def empty(table: pd.DataFrame) -> None:
    """A target that is missing."""
    table.loc[3, "target"] = np.nan


def short(table: pd.DataFrame) -> None:
    """The last row is missing."""
    table.drop(index=15, inplace=True)


def renamed(table: pd.DataFrame) -> None:
    """Another column name."""
    table.rename(columns={"target": "label"}, inplace=True)


@pytest.mark.parametrize(("spoil", "expected"), [
    (foreign, "row 4: expected an id of test.csv"), (twice, "row 7: expected every id once"),
    (too_high, "row 5: expected target to be a number from 0 to 5, got '5.01'"),
    (empty, "row 5: expected target to be a number from 0 to 5, got ''"),
    (short, "expected 16 ids as in test.csv, got 15"),
    (renamed, "row 1: expected column target, got id, label")])
@pytest.mark.parametrize("finished", ["cross"], indirect=True)
def test_check_names_the_fault(command, finished, tmp_path, spoil, expected):
    """A spoilt submission is refused with file, row and reason."""
    path = only(tmp_path / "submissions", "*.csv")
    table = read_csv(path)
    spoil(table)
    table.to_csv(path, index=False)
    code, _, err = command("stage=check", "data.dir=data", f"submission={path}")
    assert code == 2
    assert err.startswith(f"error: {path}: ")
    assert expected in err
    assert err.count("\n") == 1
