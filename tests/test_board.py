"""The list of runs and submissions, and leaderboard scores recorded beside submissions.

python -m pytest tests/test_board.py
"""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from refusal import contents, refusal
from scipy import stats
from toy import done, read_json

from pipeline.submission import write_submission


def write_run(root: Path, stage: str, mark: str, before: str = "", pearson: float | None = None,
              started: str = "2025-01-01T00:00:00+00:00", status: str = "complete") -> Path:
    """A run's manifest and metrics as the stages write them; before: whose model it began with."""
    folder = root / "runs" / stage / f"try-{mark}"
    folder.mkdir(parents=True)
    start = {"run": before} if before else {"encoder": {"config.json": "0"}, "pooling": "auto"}
    manifest = {"stage": stage, "identity": mark, "status": status, "started": started,
                "encoder": "klue/roberta-large", "seconds": 12.5,
                "shape": {"stage": stage, "seed": 43, "start": start}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if pearson is not None:
        found = {"value": pearson, "low": pearson - 0.02, "high": pearson + 0.01}
        (folder / "metrics.json").write_text(json.dumps({"dev": {"n": 9, "pearson": found}}))
    return folder


def submit(root: Path, run: Path, mark: str) -> Path:
    """The run's submission, as stage=sts writes it."""
    path = root / "submissions" / f"{run.name}.csv"
    write_submission(path, ["a", "b"], np.array([1.0, 2.0]), ["b", "a"],
                     {"runs": [str(run)], "identity": mark, "chain": ["sts"]})
    return path


@pytest.fixture
def two(tmp_path) -> Path:
    """A finished chain simcse>sts with a submission; the sts run began later."""
    write_run(tmp_path, "simcse", "1111111111", pearson=0.7)
    last = write_run(tmp_path, "sts", "2222222222", "1111111111", 0.9, "2025-01-02T00:00:00+00:00")
    submit(tmp_path, last, "2222222222")
    return tmp_path


ROOT = Path(__file__).resolve().parent.parent
SUBMISSION = "submissions/try-2222222222.csv"


def table(command, *words: str) -> pd.DataFrame:
    """The board as CSV, read back."""
    code, out, err = command("stage=board", "board.format=csv", *words)
    assert code == 0, err
    return pd.read_csv(io.StringIO(out))


def test_csv(command, two):
    """Nothing but the table on stdout: a row a run, oldest first, with its submission."""
    found = table(command)
    assert found.columns.tolist() == [
        "run", "chain", "encoder", "seed", "status", "pearson", "low", "high", "seconds",
        "submission", "public", "private"]
    assert found["run"].tolist() == ["runs/simcse/try-1111111111", "runs/sts/try-2222222222"]
    assert found["chain"].tolist() == ["simcse", "simcse>sts"]
    assert found["encoder"].tolist() == ["klue/roberta-large"] * 2
    assert found["seed"].tolist() == [43, 43]
    assert found["status"].tolist() == ["complete"] * 2
    assert found["pearson"].tolist() == [0.7, 0.9]
    assert found["low"].tolist() == pytest.approx([0.68, 0.88])
    assert found["high"].tolist() == pytest.approx([0.71, 0.91])
    assert found["seconds"].tolist() == [12.5, 12.5]
    assert pd.isna(found["submission"][0])
    assert found["submission"][1] == SUBMISSION
    assert found[["public", "private"]].isna().all().all()


def test_json(command, two):
    """The same as a JSON list; what is not there is null."""
    code, out, _ = command("stage=board", "board.format=json", "submission=" + SUBMISSION,
                           "board.private=0.8")
    assert code == 0
    rows = json.loads(out)
    assert rows[1] == {
        "run": "runs/sts/try-2222222222", "chain": "simcse>sts", "encoder": "klue/roberta-large",
        "seed": 43, "status": "complete", "pearson": 0.9, "low": pytest.approx(0.88),
        "high": pytest.approx(0.91), "seconds": 12.5, "submission": SUBMISSION, "public": None,
        "private": 0.8}
    assert rows[0]["private"] is None
    assert rows[0]["submission"] == ""


def test_table(command, two):
    """For people: score with interval, and no correlation line before three scores are known."""
    said = done(command, "stage=board", f"submission={SUBMISSION}", "board.public=0.8875")
    lines = said.splitlines()
    assert lines[0].split() == ["run", "chain", "encoder", "seed", "status", "pearson", "seconds",
                                "submission", "public", "private"]
    assert "0.7000 [0.6800, 0.7100]" in lines[1]
    assert "simcse>sts" in lines[2]
    assert "0.9000 [0.8800, 0.9100]" in lines[2]
    assert "0.8875" in lines[2]
    assert len(lines) == 3
    assert "NaN" not in said
    assert "None" not in said


def test_recorded(command, two):
    """Scores add up beside the submission, the last of a half wins, the rest of it stays."""
    before = read_json(two / "submissions/try-2222222222.json")
    content = (two / SUBMISSION).read_bytes()
    for words in (["board.public=0.5"], ["board.private=-0.25"],
                  ["board.public=0.9012"]):
        done(command, "stage=board", f"submission={SUBMISSION}", *words)
    assert read_json(two / "submissions/try-2222222222.json") == before | {
        "leaderboard": {"public": 0.9012, "private": -0.25}}
    assert (two / SUBMISSION).read_bytes() == content
    assert table(command).iloc[1][["public", "private"]].tolist() == [0.9012, -0.25]


def test_recorded_scores_outlive_the_submission(command, two):
    """stage=sts, which reuses the run and writes its submission again, does not lose them."""
    done(command, "stage=board", f"submission={SUBMISSION}", "board.public=0.9012")
    submit(two, two / "runs/sts/try-2222222222", "2222222222")
    assert table(command)["public"].tolist()[1] == 0.9012


def test_chains(command, tmp_path):
    """Lineage over three stages; a run under way and one without metrics are shown as such."""
    write_run(tmp_path, "sts", "c", "b", 0.8, "2025-01-03T00:00:00+00:00")
    write_run(tmp_path, "nli", "b", "a", None, "2025-01-02T00:00:00+00:00")
    write_run(tmp_path, "simcse", "a", "", 0.5)
    write_run(tmp_path, "sts", "d", "", None, "2025-01-04T00:00:00+00:00", "running")
    (tmp_path / "runs/sts/broken-e").mkdir()
    (tmp_path / "runs/sts/broken-e/manifest.json").write_text("{")
    found = table(command)
    assert found["chain"].tolist() == ["simcse", "simcse>nli", "simcse>nli>sts", "sts"]
    assert found["status"].tolist() == ["complete"] * 3 + ["running"]
    assert found["pearson"].isna().tolist() == [False, True, False, True]
    said = done(command, "stage=board")
    assert "simcse>nli>sts" in said
    assert [line.split()[4] for line in said.splitlines()[1:]] == ["complete"] * 3 + ["unfinished"]
    assert len(said.splitlines()) == 5


def test_correlation(command, tmp_path):
    """With three recorded scores: Spearman, p and the mean gap, of runs with both numbers."""
    dev, public = [0.90, 0.80, 0.85, 0.7], [0.88, 0.79, 0.77]
    for place, pearson in enumerate(dev):
        run = write_run(tmp_path, "sts", f"m{place}", "", pearson)
        path = submit(tmp_path, run, f"m{place}")
        if place < 3:
            said = done(command, "stage=board", f"submission={path.relative_to(tmp_path)}",
                        f"board.public={public[place]}")
            assert ("dev against" in said) == (place == 2)
    line = done(command, "stage=board").splitlines()[-1]
    p = stats.spearmanr(dev[:3], public).pvalue
    assert line == (f"dev against public: Spearman 0.50 (p {p:.2f}) over 3 submissions; public is "
                    "on average -0.0367 from dev")


def test_nothing_yet(command, tmp_path):
    """Without runs it says how to make one; CSV has its header, JSON an empty list."""
    assert done(command, "stage=board") == "no runs yet: python run.py stage=sts makes one\n"
    assert table(command).empty
    assert command("stage=board", "board.format=json")[1] == "[]\n"
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(("words", "message"), [
    (["board.public=0.9"], "submission: expected the file whose leaderboard score is recorded, got "
                           "none"),
    ([f"submission={SUBMISSION}"], "board.public, board.private: expected a score to record, got "
                                   "none"),
    (["submission=submissions/other.csv", "board.public=0.9"],
     "submission: expected a file that this pipeline wrote (with other.json beside it), got "
     "submissions/other.csv"),
    (["board.format=xml"], "board.format: expected one of table, csv, json, got 'xml'"),
    ([f"submission={SUBMISSION}", "board.public=90.12"],
     "board.public: expected a Pearson from -1 to 1, got 90.12"),
    ([f"submission={SUBMISSION}", "board.private=-3"],
     "board.private: expected a Pearson from -1 to 1, got -3"),
    (["board.public=good"], "board.public: expected float, got 'good'")])
def test_refused(command, two, words, message):
    """One line, and nothing is recorded."""
    before = contents(two)
    assert refusal(command("stage=board", *words)) == message
    assert contents(two) == before


@pytest.mark.parametrize("text", ["{", "[]", '"note"'])
def test_foreign_json(command, two, text):
    """A JSON among the submissions that is none of ours does not break the list."""
    (two / "submissions/notes.json").write_text(text)
    assert table(command)["submission"].tolist()[1] == SUBMISSION


def test_damaged_record(command, two):
    """A submission's JSON that cannot be read is one line that names it."""
    (two / "submissions/try-2222222222.json").write_text("{")
    said = refusal(command("stage=board", f"submission={SUBMISSION}", "board.public=0.9"))
    assert "try-2222222222.json" in said


def with_predictions(folder: Path, noise: float, oof: bool = False, trial: bool = False,
                     seed: int = 0, test: int = 40) -> Path:
    """Gives a run's folder predictions: labels with noise; runs of one seed share the labels."""
    labels = np.random.default_rng(seed).uniform(0, 5, 300)
    errors = np.random.default_rng(ord(folder.name[-1])).normal(size=300)
    table = pd.DataFrame({"id": [f"{seed}-{row:03d}" for row in range(300)], "label": labels,
                          "prediction": labels + noise * errors})
    (folder / "predictions").mkdir()
    for name in ("dev", *["oof"] * oof):
        table.to_csv(folder / f"predictions/{name}.csv", index=False)
    table[["id", "prediction"]].head(test).to_csv(folder / "predictions/test.csv", index=False)
    manifest = read_json(folder / "manifest.json")
    manifest["shape"] |= {"trial": trial, "data": {"dev": str(seed), "test": str(seed)}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_recommended(command, tmp_path):
    """The best finished sts run or ensemble; not one under way, nor a stage without labels."""
    best = with_predictions(write_run(tmp_path, "ensemble", "b"), 0.3)
    submit(tmp_path, best, "b")
    with_predictions(write_run(tmp_path, "sts", "a"), 1.0)
    with_predictions(write_run(tmp_path, "sts", "c", status="running"), 0.1)
    with_predictions(write_run(tmp_path, "simcse", "d"), 0.1)
    lines = done(command, "stage=board").splitlines()
    assert len(lines) == 1 + 4 + 2
    assert lines[5].startswith("submit submissions/try-b.csv: dev Pearson 0.9")
    assert lines[5].endswith("(300 pairs), the highest of 2 candidates")
    assert lines[6] == "worse than it: 1 of the other 1"


def test_recommended_never_by_public(command, tmp_path):
    """A run that leads on the public half by luck is not recommended, and the board says why."""
    for mark, noise, public in (("a", 0.5, 0.90), ("b", 1.0, 0.95)):
        run = with_predictions(write_run(tmp_path, "sts", mark), noise)
        submit(tmp_path, run, mark)
        said = done(command, "stage=board", f"submission=submissions/try-{mark}.csv",
                    f"board.public={public}")
    assert "submit submissions/try-a.csv" in said
    line = said.splitlines()[-1]
    assert line.startswith("public ranks submissions/try-b.csv first (0.9500, and 0.9000 for "
                           "submissions/try-a.csv), dev does not: a public score of 20 rows has")


def test_recommended_by_out_of_fold(command, tmp_path):
    """oof where all candidates have it, else dev; a run without a submission is named by folder."""
    for mark, noise in (("a", 0.5), ("b", 0.7)):
        with_predictions(write_run(tmp_path, "sts", mark), noise, oof=True)
    assert "submit runs/sts/try-a (no submission yet: its stage writes it): oof " in done(
        command, "stage=board")
    with_predictions(write_run(tmp_path, "sts", "c"), 0.2)
    assert "submit runs/sts/try-c (no submission yet: its stage writes it): dev " in done(
        command, "stage=board")


def test_recommended_among_the_same_data(command, tmp_path):
    """Other data and trials have a recommendation of their own; other rows are left out."""
    for mark, noise in (("a", 0.5), ("b", 0.7)):
        with_predictions(write_run(tmp_path, "sts", mark), noise)
    with_predictions(write_run(tmp_path, "sts", "c"), 0.1, seed=1)
    with_predictions(write_run(tmp_path, "sts", "d"), 0.1, trial=True)
    odd = with_predictions(write_run(tmp_path, "sts", "e"), 0.1)
    table = pd.read_csv(odd / "predictions/dev.csv")
    table.iloc[::-1].to_csv(odd / "predictions/dev.csv", index=False)
    (with_predictions(write_run(tmp_path, "sts", "f"), 0.1) / "predictions/dev.csv").write_text("")
    lines = done(command, "stage=board").splitlines()[7:]
    assert sorted(line.partition(": ")[0] for line in lines if line.startswith("submit ")) == [
        f"submit runs/sts/try-{mark} (no submission yet" for mark in "acd"]
    assert ("left out, their dev predictions cannot be read or are of other rows: "
            "runs/sts/try-e, runs/sts/try-f") in lines
    assert lines[lines.index("trial, on the bundled sample:") + 1].startswith(
        "submit runs/sts/try-d ")


def test_ensemble_listed(command, tmp_path):
    """An ensemble has its own line with its submission, though it is made of several runs."""
    folder = write_run(tmp_path, "ensemble", "e", pearson=0.93)
    manifest = read_json(folder / "manifest.json")
    manifest["shape"] = {"stage": "ensemble", "start": {}, "runs": ["a", "b"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    write_submission(tmp_path / "submissions/try-e.csv", ["a"], np.array([1.0]), ["a"],
                     {"runs": ["runs/sts/a", "runs/sts/b"], "identity": "e"})
    found = table(command).iloc[0]
    assert (found["chain"], found["pearson"]) == ("ensemble", 0.93)
    assert found["submission"] == "submissions/try-e.csv"
    assert pd.isna(found["seed"])


def test_scores_of_other_pairs(command, two):
    """What stage=predict wrote has no line in the table, and so no score."""
    (two / "submissions/x-test.json").write_text('{"runs": ["x"], "pairs": "test.csv"}')
    said = refusal(command("stage=board", "submission=submissions/x-test.csv", "board.public=0.9"))
    assert said == ("submission: expected one of stage sts or ensemble, got submissions/x-test.csv "
                    "of stage predict, whose pairs the table knows nothing of")


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_warnings_stay_out_of_what_programs_read(two, kind):
    """A damaged manifest is told on stderr; stdout is the table alone."""
    manifest = next((two / "runs").glob("*/*/manifest.json"))
    manifest.write_text("{")
    ended = subprocess.run([sys.executable, ROOT / "run.py", "stage=board", f"board.format={kind}"],
                           cwd=two, capture_output=True, text=True, check=True)
    assert "manifest.json is damaged" in ended.stderr
    read = (json.loads(ended.stdout) if kind == "json"
            else list(csv.DictReader(io.StringIO(ended.stdout))))
    assert [len(read), *read[0]][:2] == [1, "run"]
