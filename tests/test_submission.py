"""Submission files: the required order, every id once, finite, clipped, checked.

python -m pytest tests/test_submission.py
"""

import errno
import json
import os

import numpy as np
import pandas as pd
import pytest

from pipeline.errors import UserError
from pipeline.submission import check_submission, write_origin, write_submission

IDS = ["a", "b", "c", "d"]


def refused(path) -> str:
    """The message with which the submission is refused, without the file's name in front."""
    with pytest.raises(UserError) as caught:
        check_submission(path, IDS)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def test_order_clipping_and_format(tmp_path):
    """In the order asked for, from 0 to 5, with six decimals and Unix line ends."""
    path = tmp_path / "new" / "s.csv"
    write_submission(path, IDS, np.array([5.2, -0.3, 1 / 3, 4.0]), ["c", "a", "d", "b"], {})
    assert path.read_bytes() == (b"id,target\nc,0.333333\na,5.000000\nd,4.000000\nb,0.000000\n")


def test_origin_is_beside_it(tmp_path):
    """The JSON of the same name says where it came from; nothing else is left."""
    origin = {"runs": ["runs/sts/x"], "dev": {"pearson": {"value": float("nan")}}}
    write_submission(tmp_path / "my.best-1.csv", IDS, np.ones(4), IDS, origin)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.best-1.csv", "my.best-1.json"]
    assert json.loads((tmp_path / "my.best-1.json").read_text()) == {
        "runs": ["runs/sts/x"], "dev": {"pearson": {"value": None}}}


def test_round_trip(tmp_path):
    """What is written passes the check, and the targets come back; float32 is taken too."""
    ids = ["007", "NA", "가-1", "1e5", 'a"b', "x,y", " s"]
    values = np.random.default_rng(0).uniform(0, 5, len(ids)).astype(np.float32)
    path = tmp_path / "s.csv"
    write_submission(path, ids, values, ids[::-1], {})
    table = check_submission(path, ids)
    assert table["id"].tolist() == ids[::-1]
    assert table["target"].to_numpy() == pytest.approx(values[::-1], abs=5e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_not_finite(tmp_path, bad):
    """Refused before anything is written."""
    with pytest.raises(ValueError, match="finite"):
        write_submission(tmp_path / "s.csv", IDS, np.array([1, 2, bad, 4]), IDS, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("ids", "order"), [
    (["a", "b", "c"], IDS), (IDS, ["a", "b", "c"]), (["a", "b", "c", "x"], IDS),
    (["a", "b", "c", "c"], ["a", "b", "c"]), (["a", "a", "b"], ["a", "b", "b"]),
    (["a", "a"], ["a", "a"])])
def test_ids_that_differ(tmp_path, ids, order):
    """Missing, foreign and repeated ids are refused before anything is written."""
    with pytest.raises(ValueError, match=r"each once|same length"):
        write_submission(tmp_path / "s.csv", ids, np.ones(len(ids)), order, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("before", [True, False])
def test_full_disk_leaves_no_half_submission(tmp_path, monkeypatch, before):
    """No CSV where there was none, and the earlier one as it was."""
    path = tmp_path / "s.csv"
    if before:
        write_submission(path, IDS, np.ones(4), IDS, {})
    old = path.read_text() if before else None

    def full(*_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_submission(path, IDS, np.zeros(4), IDS, {})
    assert (path.read_text() if path.exists() else None) == old
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(("lines", "message"), [
    (["id,score", "a,1"], "row 1: expected column target, got id, score"),
    (["id,target"], "row 2: expected rows under the header, got none"),
    (["id,target", "a,1", "b,2", "c,3"], "row 5: expected 4 ids as in test.csv, got 3: no 'd'"),
    (["id,target", "a,1", "b,2", "x,3", "d,4"],
     "row 4: expected an id of test.csv (such as 'a'), got 'x'"),
    (["id,target", "a,1", "b,2", "a,3", "d,4"], "row 4: expected every id once, got 'a' again"),
    (["id,target", "a,1", "b,2", "c,3", "d,4", "d,4"],
     "row 6: expected every id once, got 'd' again"),
    (["id,target", "a,1", "b,5.01", "c,3", "d,4"],
     "row 3: expected target to be a number from 0 to 5, got '5.01'"),
    (["id,target", "a,1", "b,2", "c,", "d,4"],
     "row 4: expected target to be a number from 0 to 5, got ''"),
    (["id,target", "a,nan", "b,2", "c,3", "d,4"],
     "row 2: expected target to be a number from 0 to 5, got 'nan'"),
    (["id;target", "a;1"], "row 1: expected columns separated by ',', got ';'")])
def test_check(tmp_path, lines, message):
    """The row of the first fault, what was expected and what was got."""
    path = tmp_path / "s.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert refused(path) == message


def test_check_of_no_file(tmp_path):
    """A file that is not there."""
    assert refused(tmp_path / "no.csv") == "expected a file, got none"


def test_check_takes_any_order(tmp_path):
    """The platform matches ids: order and further columns do not matter."""
    path = tmp_path / "s.csv"
    path.write_text("target,id,note\n5,d,x\n0,c,x\n1.5,a,x\n2,b,x\n", encoding="utf-8")
    assert check_submission(path, IDS)["target"].tolist() == [5.0, 0.0, 1.5, 2.0]


def test_stage_check_of_a_submission(command, competition):
    """Through stage=check: a right one is praised, constant targets are a risk; no model."""
    table = pd.read_csv(competition / "sample_submission.csv").assign(target=2.5)
    table.to_csv(competition / "mine.csv", index=False)
    words = ["stage=check", f"data.dir={competition}", f"submission={competition / 'mine.csv'}"]
    code, out, err = command(*words)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{competition / 'mine.csv'}: correct: 16 ids of test.csv, each once, targets from 2.500 "
        "to 2.500", "risk: all targets are equal: Pearson is undefined"]
    table["target"] = [index / 4 for index in range(len(table))]
    for rows, risks in ((table, 0), (table[::-1], 1)):
        rows.to_csv(competition / "mine.csv", index=False)
        code, out, err = command(*words)
        assert (code, err) == (0, "")
        assert out.count("risk: the ids stand in another order") == out.count("risk:") == risks
    table.loc[4, "id"] = table.loc[3, "id"]
    table.to_csv(competition / "mine.csv", index=False)
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert err == (f"error: {competition / 'mine.csv'}: row 6: expected every id once, got "
                   f"{table.loc[3, 'id']!r} again\n")


@pytest.mark.parametrize(("before", "after", "kept"), [
    ("a", "a", True), ("a", "b", False), ("", "", False), ("a", "", False), ("", "a", False)])
def test_a_leaderboard_score_is_of_one_run(tmp_path, before, after, kept):
    """It stays with the same run's file; files of no run (stage=predict) may be of other pairs."""
    path = tmp_path / "x.csv"
    write_origin(path, {"leaderboard": {"public": 0.9}} | ({"identity": before} if before else {}))
    write_origin(path, {"identity": after} if after else {"pairs": "y.csv"})
    assert ("leaderboard" in json.loads(path.with_suffix(".json").read_text())) == kept
