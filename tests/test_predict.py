"""stage=predict part by part: as the whole file at once, in memory that does not grow with it.

    python -m pytest tests/test_predict.py
"""

import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from toy import done, only, read_csv, read_json, small

from pipeline import data, heads, submission
from pipeline.data import is_labelled, pairs_in_parts, read_pairs
from pipeline.errors import UserError
from pipeline.stages import predict

HEADER = "id,source,sentence_1,sentence_2,label"
ROWS = [f"p{number},s,가{number} 나,다 라{number},{number % 6}" for number in range(20)]


def written(path: Path, *lines: str, encoding: str = "utf-8", end: str = "\n") -> Path:
    """The lines as a file."""
    path.write_bytes("".join(line + end for line in lines).encode(encoding))
    return path


@pytest.mark.parametrize("size", [1, 7, 20, 21])
@pytest.mark.parametrize(("encoding", "end"), [("utf-8-sig", "\r\n"), ("cp949", "\r"),
                                               ("utf-8", "\n")])
def test_parts_are_the_whole(tmp_path, size, encoding, end):
    """Every row once with its number, whatever the encoding, line ends and blank lines."""
    path = written(tmp_path / "p.csv", HEADER, *ROWS[:6], "", ",,,,", *ROWS[6:], "",
                   encoding=encoding, end=end)
    notes: list[str] = []
    parts = list(pairs_in_parts(path, True, size, notes))
    assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), read_pairs(path, True))
    assert parts[-1]["row"].iloc[-1] == 23
    assert len(notes) == (encoding == "cp949")


@pytest.mark.parametrize(("line", "message"), [
    (ROWS[0], "expected a new id, got 'p0' as in row 2"),
    (ROWS[9], "expected a new id, got 'p9' as in row 11"),
    ("x,s,가,나,5.1", "expected label to be a number from 0 to 5, got '5.1'"),
    ("x,s,가,나,", "expected label to be a number from 0 to 5, got ''"),
    ("x,s, ,나,1", "expected text in sentence_1, got ' '"),
    ("=x,s,가,나,1", "expected an id that no spreadsheet takes for a formula, got '=x'"),
    ("x,s,가,나", "expected 5 cells as in the header, got 4"),
    ('x,s,"가" 나,다,1', 'expected a comma after the closing quote (") of a cell'),
    ("x,s,가\0,나,1", "expected text, got a NUL byte"),
    ("x,s,\udcff가,나,1", "expected UTF-8 (or CP949) text, got other bytes")])
def test_faults_of_a_later_part(tmp_path, line, message):
    """Each is refused in the words that the whole file would be."""
    path = tmp_path / "p.csv"
    path.write_bytes("\n".join([HEADER, *ROWS[:11], line, *ROWS[11:]]).encode(
        errors="surrogateescape"))
    for size in (1, 4, None):
        with pytest.raises(UserError) as caught:
            list(pairs_in_parts(path, True, size))
        assert str(caught.value).startswith(f"{path}: row 13: {message}")


def test_two_ids_of_one_hash(tmp_path, monkeypatch):
    """They are two ids; the same id twice is refused nevertheless."""
    monkeypatch.setattr(data, "hashes", lambda ids: np.full(len(ids), 7, np.uint64))
    path = written(tmp_path / "p.csv", HEADER, *ROWS)
    assert sum(map(len, pairs_in_parts(path, True, 6))) == 20
    written(path, HEADER, *ROWS, ROWS[3])
    with pytest.raises(UserError, match="row 22: expected a new id, got 'p3' as in row 5"):
        list(pairs_in_parts(path, True, 6))


def test_is_labelled(tmp_path):
    """A label in any row makes it so: then the others must have one too."""
    path = tmp_path / "p.csv"
    assert not is_labelled(written(path, "id,sentence_1,sentence_2", "a,가,나"))
    assert not is_labelled(written(path, HEADER, "a,s,가,나,", "b,s,가,나,"))
    assert is_labelled(written(path, HEADER, "a,s,가,나,", "b,s,가,나,3"))


def test_reading_needs_no_memory(tmp_path):
    """40,000 rows take at most 32 bytes a row more than 10,000: hashes, and their copy."""
    peaks = []
    for rows in (10_000, 40_000):
        path = written(tmp_path / "p.csv", HEADER, *(
            f"{number},s,{'가나다 ' * 20},라,1" for number in range(rows)))
        tracemalloc.start()
        assert sum(map(len, pairs_in_parts(path, True, 1000))) == rows
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 32 * 30_000


@pytest.mark.parametrize("words", [
    ["sts.head=bi", "sts.calibrate=surface"],
    ["sts.head=cross", "sts.both_orders=true", "sts.folds=2"]])
def test_scores_part_by_part(command, competition, make_encoder, monkeypatch, words):
    """Predictions, scores and calibration are the whole file's; progress counts all rows."""
    done(command, "stage=sts", *small(make_encoder(), "chain=[sts]", *words))
    run, found = only(Path("runs/sts")), {}
    for name, size in (("whole", 10_000), ("parts", 5)):
        monkeypatch.setattr(predict, "PART", size)
        out = done(command, "stage=predict", f"run={run}", "pairs=data/dev.csv", "precision=fp32",
                   f"submissions_dir={name}")
        table = read_csv(only(Path(name), "*.csv"))
        found[name] = table, read_json(only(Path(name), "*.json"))
    total = 48 if "sts.folds=2" in words else 24
    assert f"{total}/{total}" in out
    (whole, record), (parts, other) = found["whole"], found["parts"]
    assert parts["id"].tolist() == whole["id"].tolist() == read_csv("data/dev.csv")["id"].tolist()
    assert parts["target"].to_numpy() == pytest.approx(whole["target"].to_numpy(), abs=2e-5)
    assert whole["target"].nunique() > 3
    for name in ("pearson", "spearman"):
        assert other["scores"][name] == pytest.approx(record["scores"][name], abs=1e-3)
    assert [part["n"] for part in other["ranges"]] == [part["n"] for part in record["ranges"]]


@pytest.mark.parametrize(("module", "name"), [(predict, "raw_scores"), (predict, "lines")])
def test_nothing_is_half_written(command, competition, make_encoder, monkeypatch, module, name):
    """A failure in a later part, of scoring or of writing, leaves no file and no part of one."""
    done(command, "stage=sts", *small(make_encoder(), "chain=[sts]", "sts.head=bi"))
    own, calls = {"raw_scores": heads.raw_scores, "lines": submission.lines}[name], []

    def failing(*words, **more):
        calls.append(words)
        if len(calls) == 3:
            raise ValueError("third part")
        return own(*words, **more)

    monkeypatch.setattr(module, "PART", 5)
    monkeypatch.setattr(module, name, failing)
    with pytest.raises(ValueError, match="third part"):
        command("stage=predict", f"run={only(Path('runs/sts'))}", "pairs=data/dev.csv",
                "submissions_dir=new")
    assert len(calls) == 3
    assert not list(Path("new").glob("**/*"))


def test_faults_come_before_scoring(command, competition, make_encoder, monkeypatch):
    """A row far down is refused before a model is loaded."""
    done(command, "stage=sts", *small(make_encoder(), "chain=[sts]", "sts.head=bi"))
    monkeypatch.setattr(predict, "PART", 5)
    monkeypatch.setattr(predict, "load_scorer", None)
    lines = Path("data/dev.csv").read_text(encoding="utf-8").splitlines()
    written(Path("twice.csv"), *lines, lines[2])
    code, _, err = command("stage=predict", f"run={only(Path('runs/sts'))}", "pairs=twice.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "twice.csv: row 26: expected a new id" in err
    assert err.rstrip().endswith("as in row 3")


@pytest.mark.parametrize(("words", "missed"), [
    (["sts.head=bi", "sts.calibrate=surface"], True),
    (["sts.head=cross", "sts.source_token=true"], True),
    (["sts.head=bi", "sts.calibrate=monotone"], False), (["sts.head=cross"], False)])
def test_missing_sources_are_said(command, competition, make_encoder, caplog, words, missed):
    """A run that looks at the source says how many pairs have none that it knows."""
    done(command, "stage=sts", *small(make_encoder(), "chain=[sts]", *words))
    run, table = only(Path("runs/sts")), read_csv("data/dev.csv")
    table.drop(columns="source").to_csv("without.csv", index=False)
    table.assign(source=["elsewhere", *table["source"][1:]]).to_csv("one.csv", index=False)
    for file, count in (("data/dev.csv", 0), ("without.csv", 24), ("one.csv", 1)):
        caplog.clear()
        done(command, "stage=predict", f"run={run}", f"pairs={file}")
        said = f"warning: {file}: {count} of 24 pairs have another source than "
        assert (said in caplog.text) == (missed and count > 0)
