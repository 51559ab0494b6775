"""Blends of finished runs: what is refused, computed and written; runs are plain files here.

python -m pytest tests/test_ensemble.py
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib import image
from refusal import contents, refusal
from scipy import stats
from toy import done, files_of, only, read_csv, read_json, small

from pipeline import calibration
from pipeline.assessment import choose
from pipeline.blending import METHODS, applied, fitted, fold_numbers, nested
from pipeline.comparison import paired_difference
from pipeline.data import content_hash, read_competition
from pipeline.files import sha256
from pipeline.splits import groups

FILES = {"ensemble.json", "table.csv", "figure.png", "metrics.json", "manifest.json", "config.yaml",
         "log.txt", "predictions/dev.csv", "predictions/test.csv"}


def write_member(root: Path, mark: str, noise: float, oof: str = "", **shape: object) -> Path:
    """A finished sts run whose predictions are the labels with noise; oof: train or both."""
    competition = read_competition(root / "data")
    random = np.random.default_rng(int(mark, 36))
    folder = root / "runs" / "sts" / f"try-{mark}"
    tables = {"dev": competition.dev[["id", "label"]], "test": competition.test[["id"]]}
    if oof:
        parts = [competition.train, competition.dev][:1 + (oof == "both")]
        tables["oof"] = pd.concat([part[["id", "label"]] for part in parts])
        tables["oof"].insert(1, "fold", np.arange(len(tables["oof"])) % 3)
    (folder / "predictions").mkdir(parents=True)
    for name, table in tables.items():
        truth = table["label"] if "label" in table else np.linspace(0, 5, len(table))
        made = (truth + noise * random.normal(size=len(table))).clip(0, 5)
        table.assign(prediction=made).to_csv(folder / f"predictions/{name}.csv", index=False,
                                             float_format="%.6f")
    data = {name: content_hash(getattr(competition, name)) for name in ("train", "dev", "test")}
    record(folder, {"stage": "sts", "identity": mark, "status": "complete", "encoder": "klue/x",
                    "started": "2025-01-01", "shape": {
                        "stage": "sts", "seed": 1, "data": data, "start": {}, "trial": False,
                        "settings": {"head": "bi"}, **shape}})
    return folder


def record(folder: Path, manifest: dict) -> None:
    """Writes the manifest with the checksums of the predictions as they are now."""
    files = {f"predictions/{path.name}": sha256(path)
             for path in (folder / "predictions").iterdir()}
    (folder / "manifest.json").write_text(json.dumps(manifest | {"files": files}))


def words(*members: str, method: str = "auto") -> list[str]:
    """A command line."""
    return ["stage=ensemble", "data.dir=data", f"ensemble.method={method}", "name=blend",
            f"runs=[{','.join(f'runs/sts/try-{mark}' for mark in members)}]"]


def predictions(root: Path, name: str, *members: str) -> np.ndarray:
    """What the members predicted (k, n)."""
    return np.stack([read_csv(root / f"runs/sts/try-{mark}/predictions/{name}.csv")["prediction"]
                     for mark in members])


@pytest.fixture
def three(competition) -> Path:
    """Three members without out-of-fold predictions; returns the working folder."""
    for mark, noise in (("a", 0.6), ("b", 0.8), ("c", 1.5)):
        write_member(competition.parent, mark, noise)
    return competition.parent


def test_written_exactly(command, three, caplog):
    """The files of the run, the blend in them, the submission in the sample's order."""
    sample = read_csv(three / "data/sample_submission.csv").iloc[::-1]
    sample.to_csv(three / "data/sample_submission.csv", index=False)
    done(command, *words("a", "b", "c", method="mean"))
    folder = only(three / "runs/ensemble")
    assert files_of(folder) == FILES
    competition = read_competition(three / "data")
    for name, frame in (("dev", competition.dev), ("test", competition.test)):
        table = read_csv(folder / f"predictions/{name}.csv")
        assert list(table) == (["id", "label", "prediction"] if name == "dev"
                               else ["id", "prediction"])
        assert table["id"].tolist() == frame["id"].tolist()
        assert table["prediction"].to_numpy() == pytest.approx(
            predictions(three, name, "a", "b", "c").mean(axis=0), abs=1e-6)
    path = only(three / "submissions", "*.csv")
    assert path.stem == folder.name
    submission, made = read_csv(path), read_csv(folder / "predictions/test.csv")
    assert submission["id"].tolist() == sample["id"].tolist() != made["id"].tolist()
    assert submission["target"].tolist() == (
        made.set_index("id")["prediction"][submission["id"]].tolist())
    origin, manifest = read_json(path.with_suffix(".json")), read_json(folder / "manifest.json")
    assert origin["runs"] == [f"runs/sts/try-{mark}" for mark in "abc"]
    assert origin["identity"] == manifest["identity"] == folder.name.rpartition("-")[2]
    assert origin["dev"] == read_json(folder / "metrics.json")["dev"]
    assert origin["trial"] is False
    assert (manifest["stage"], manifest["status"]) == ("ensemble", "complete")
    table = pd.read_csv(folder / "table.csv")
    assert table["run"].tolist() == origin["runs"]
    assert table["weight"].tolist() == pytest.approx([1 / 3] * 3)
    picture = image.imread(folder / "figure.png")
    assert picture.shape[1] > 1000
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 10
    assert "not all members have out-of-fold predictions" in caplog.text


@pytest.mark.parametrize("method", METHODS)
def test_numbers(command, three, method):
    """Every number of ensemble.json from the members' predictions; dev's are held out."""
    done(command, *words("a", "b", "c", method=method))
    folder = only(three / "runs/ensemble")
    found, dev = read_json(folder / "ensemble.json"), read_csv(folder / "predictions/dev.csv")
    members, labels = predictions(three, "dev", "a", "b", "c"), dev["label"].to_numpy()
    folds = fold_numbers(groups(read_competition(three / "data").dev))
    blend = nested(method, members, labels, folds)
    weights = fitted(method, members, labels)
    test = read_csv(folder / "predictions/test.csv")["prediction"].to_numpy()
    assert dev["prediction"].to_numpy() == pytest.approx(blend, abs=1e-6)
    assert test == pytest.approx(
        applied(method, predictions(three, "test", "a", "b", "c"), weights), abs=1e-6)
    assert (found["method"], found["fitted_on"], found["rows"]) == (method, "dev", 24)
    assert found["why"] == f"ensemble.method={method}"
    score = stats.pearsonr(blend, labels).statistic
    assert found["blend"]["dev"]["value"] == pytest.approx(score)
    assert read_json(folder / "metrics.json")["dev"]["pearson"]["value"] == pytest.approx(score)
    alone = [stats.pearsonr(part, labels).statistic for part in members]
    assert [row["dev"]["value"] for row in found["members"]] == pytest.approx(alone)
    assert [row["weight"] for row in found["members"]] == pytest.approx(list(weights[0]))
    assert found["intercept"] == pytest.approx(weights[1])
    best = int(np.argmax(alone))
    expected = paired_difference(labels, members[best][None], blend[None])
    assert found["gain"]["dev"] == pytest.approx({"over": best, **expected})
    for place, row in enumerate(found["members"]):
        rest = nested(method, np.delete(members, place, axis=0), labels, folds)
        assert row["without"]["value"] == pytest.approx(
            stats.pearsonr(rest, labels).statistic - score)
        assert row["without"]["corrected_p"] >= row["without"]["p"]
    assert np.allclose(found["correlations"]["predictions"], np.corrcoef(members))
    assert np.allclose(found["correlations"]["errors"], np.corrcoef(members - labels))
    assert [row["method"] for row in found["methods"]] == list(METHODS)


@pytest.mark.parametrize("oof", ["train", "both"])
def test_out_of_fold(command, competition, oof):
    """Fitted on oof; dev is apart and gets all its weights, or is in it and so held out."""
    root = competition.parent
    for mark, noise in (("a", 0.6), ("b", 0.8)):
        write_member(root, mark, noise, oof)
    done(command, *words("a", "b", method="weights"))
    folder = only(root / "runs/ensemble")
    assert files_of(folder) == FILES | {"predictions/oof.csv"}
    data = read_competition(competition)
    frame = pd.concat([data.train, data.dev]) if oof == "both" else data.train
    members, labels = predictions(root, "oof", "a", "b"), frame["label"].to_numpy()
    folds = fold_numbers(groups(frame))
    blend = nested("weights", members, labels, folds)
    table = read_csv(folder / "predictions/oof.csv")
    assert list(table) == ["id", "fold", "label", "prediction"]
    assert table["id"].tolist() == frame["id"].tolist()
    assert table["fold"].tolist() == folds.tolist()
    assert table["prediction"].to_numpy() == pytest.approx(blend, abs=1e-6)
    dev = read_csv(folder / "predictions/dev.csv")["prediction"].to_numpy()
    weights = fitted("weights", members, labels)
    assert dev == pytest.approx(blend[-24:] if oof == "both" else applied(
        "weights", predictions(root, "dev", "a", "b"), weights), abs=1e-6)
    found = read_json(folder / "ensemble.json")
    assert (found["fitted_on"], found["rows"]) == ("oof", len(frame))
    assert list(found["blend"]) == list(found["gain"]) == ["oof", "dev"]
    assert found["blend"]["oof"]["value"] == pytest.approx(
        stats.pearsonr(blend, labels).statistic)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_out_of_fold_of_two_extents(command, competition, order):
    """One member learnt from dev too: train's rows are those that both have out of fold."""
    root = competition.parent
    write_member(root, "a", 0.6, "train")
    write_member(root, "b", 0.8, "both")
    done(command, *words(*order, method="weights"))
    folder = only(root / "runs/ensemble")
    train = read_competition(competition).train
    members = np.stack([read_csv(root / f"runs/sts/try-{mark}/predictions/oof.csv")["prediction"]
                        .to_numpy()[:len(train)] for mark in order])
    labels = train["label"].to_numpy()
    table = read_csv(folder / "predictions/oof.csv")
    assert table["id"].tolist() == train["id"].tolist()
    assert table["prediction"].to_numpy() == pytest.approx(
        nested("weights", members, labels, fold_numbers(groups(train))), abs=1e-6)
    dev = read_csv(folder / "predictions/dev.csv")["prediction"].to_numpy()
    assert dev == pytest.approx(applied("weights", predictions(root, "dev", *order),
                                        fitted("weights", members, labels)), abs=1e-6)


@pytest.mark.parametrize("oof", ["", "train", "both"])
@pytest.mark.parametrize("kind", ["monotone", "surface"])
def test_calibrated(command, competition, oof, kind):
    """Dev's blend is cross-fitted, all other rows get the map that is fitted on dev."""
    root = competition.parent
    for mark, noise in (("a", 0.6), ("b", 0.8)):
        write_member(root, mark, noise, oof)
    done(command, *words("a", "b", method="mean"), "ensemble.calibrate=" + kind)
    folder, data = only(root / "runs/ensemble"), read_competition(root / "data")
    raw = predictions(root, "dev", "a", "b").mean(axis=0)
    if oof == "both":
        raw = predictions(root, "oof", "a", "b").mean(axis=0)[-24:]
    dev, mapped = calibration.fitted(kind, raw, data.dev)
    written = {path.stem: read_csv(path)["prediction"].to_numpy()
               for path in (folder / "predictions").iterdir()}
    assert written["dev"] == pytest.approx(dev, abs=1e-6)
    assert written["test"] == pytest.approx(
        mapped(predictions(root, "test", "a", "b").mean(axis=0), data.test), abs=1e-6)
    if oof:
        n = len(data.train)
        before = predictions(root, "oof", "a", "b").mean(axis=0)[:n]
        assert written["oof"][:n] == pytest.approx(mapped(before, data.train), abs=1e-6)
        assert written["oof"][n:] == pytest.approx(dev[:len(written["oof"]) - n], abs=1e-6)
    found, labels = read_json(folder / "ensemble.json"), data.dev["label"].to_numpy()
    expected = paired_difference(labels, raw[None], dev[None])
    assert found["calibration"] == pytest.approx({"kind": kind, **expected})
    assert read_json(folder / "metrics.json")["dev"]["pearson"]["value"] == pytest.approx(
        stats.pearsonr(written["dev"], labels).statistic, abs=1e-5)
    assert "the blend before calibration is " in (folder / "log.txt").read_text(encoding="utf-8")


def test_predict_wants_a_model(command, competition):
    """A blend has none of its own, calibrated or not: one line says so."""
    root = competition.parent
    for mark, noise in (("a", 0.6), ("b", 0.8)):
        write_member(root, mark, noise)
    done(command, *words("a", "b", method="mean"), "ensemble.calibrate=monotone")
    folder = only(root / "runs/ensemble")
    assert refusal(command("stage=predict", f"run={folder}", "pairs=data/test.csv")) == (
        f"run: expected a run with a model, got {folder} of stage ensemble, which has none")


def test_some_without_oof(command, competition):
    """One member without out-of-fold predictions: the weights are fitted on dev."""
    write_member(competition.parent, "a", 0.6, "both")
    write_member(competition.parent, "b", 0.6)
    done(command, *words("a", "b"))
    folder = only(competition.parent / "runs/ensemble")
    assert read_json(folder / "ensemble.json")["fitted_on"] == "dev"
    assert files_of(folder) == FILES


def test_no_password_is_kept(command, three):
    """A database's password on the command line stands in no file of the blend."""
    done(command, *words("a", "b"), "tune.storage=postgresql://me:hush@host/db")
    kept = [path.read_bytes() for top in ("runs/ensemble", "submissions")
            for path in (three / top).rglob("*") if path.is_file()]
    assert any(b"postgresql://me:***@host/db" in text for text in kept)
    assert not any(b"hush" in text for text in kept)


def test_again(command, three):
    """The same command gives the same run; other members or another method another one."""
    done(command, *words("a", "b"))
    folder = only(three / "runs/ensemble")
    before = contents(folder / "predictions")
    done(command, "stage=board", f"submission=submissions/{folder.name}.csv", "board.public=0.9")
    done(command, *words("a", "b"))
    assert contents(only(three / "runs/ensemble") / "predictions") == before
    origin = read_json(three / f"submissions/{folder.name}.json")
    assert origin["leaderboard"] == {"public": 0.9}
    done(command, *words("a", "c"))
    done(command, *words("a", "b", method="rank"))
    assert len(list((three / "runs/ensemble").glob("blend-*"))) == 3


def row(method: str, value: float, low: float) -> dict:
    """A method's line as far as choosing needs it."""
    return {"method": method, "difference": {"value": value, "low": low, "high": 2 * value - low}}


def test_choice():
    """auto: the mean, unless another's interval lies above it; then the best of those."""
    mean = row("mean", 0, 0)
    assert choose([mean, row("rank", 0.01, -0.001)], "auto")[0] == "mean"
    methods = [mean, row("rank", 0.01, 0.001), row("weights", 0.02, 0.002),
               row("greedy", 0.03, -0.001)]
    method, why = choose(methods, "auto")
    assert method == "weights"
    assert why == ("auto takes weights: better than the plain mean by +2.00 [+0.20, +3.80] points "
                   "of Pearson")
    assert choose(methods, "rank") == ("rank", "ensemble.method=rank")
    assert choose([mean, row("rank", float("nan"), float("nan"))], "auto")[0] == "mean"


def change(**changes: object):
    """An edit of the second member's manifest."""
    def edit(root: Path) -> None:
        file = root / "runs/sts/try-b/manifest.json"
        content = read_json(file)
        shape = content["shape"] | changes.pop("shape", {})
        file.write_text(json.dumps(content | changes | {"shape": shape}))

    return edit


def rewrite(name: str, edit, is_recorded: bool = True):
    """An edit of the second member's predictions, as if the run had written them so."""
    def spoil(root: Path) -> None:
        folder = root / "runs/sts/try-b"
        file = folder / f"predictions/{name}.csv"
        edit(read_csv(file)).to_csv(file, index=False)
        if is_recorded:
            record(folder, read_json(folder / "manifest.json"))

    return spoil


def made_up(root: Path) -> None:
    """Gives the members out-of-fold predictions that no run wrote."""
    for folder in (root / "runs/sts").glob("try-*/predictions"):
        (folder / "oof.csv").write_bytes((folder / "dev.csv").read_bytes())


def other_data(name: str):
    """An edit: the competition's file has another sentence now, or the member had."""
    def spoil(root: Path) -> None:
        file = root / "runs/sts/try-b/manifest.json"
        content = read_json(file)
        content["shape"]["data"][name] = "0" * 64
        file.write_text(json.dumps(content))

    return spoil


@pytest.mark.parametrize(("spoil", "members", "message"), [
    (None, "a", "runs: expected 2 or more finished sts runs, got 1"),
    (None, "", "runs: expected 2 or more finished sts runs, got 0"),
    (None, "aa", "runs: expected different runs, got runs/sts/try-a twice"),
    (None, "ax", "runs: expected the folder of a finished run, got 'runs/sts/try-x'"),
    (change(status="running"), "ab", "runs: expected a finished run, got runs/sts/try-b with "
                                     "status 'running'"),
    (change(stage="simcse"), "ab", "runs: expected runs of stage sts, got runs/sts/try-b of stage "
                                   "simcse"),
    (change(shape={"trial": True}), "ab", "runs: expected no trial run, got runs/sts/try-b, which "
                                          "is one; trial runs go together by trial=always, and "
                                          "with each other only"),
    (other_data("train"), "ab", "runs: expected runs on the train.csv of data.dir, got "
                                "runs/sts/try-b on another"),
    (other_data("dev"), "ab", "runs: expected runs on the dev.csv of data.dir, got "),
    (other_data("test"), "ab", "runs: expected runs on the test.csv of data.dir, got "),
    (rewrite("dev", lambda table: table.iloc[::-1]), "ab",
     "runs/sts/try-b/predictions/dev.csv: row 2: expected id "),
    (rewrite("test", lambda table: table.iloc[[1, 0, *range(2, 16)]]), "ab",
     "runs/sts/try-b/predictions/test.csv: row 2: expected id "),
    (rewrite("test", lambda table: table.head(15)), "ab",
     "runs/sts/try-b/predictions/test.csv: expected 16 rows, got 15"),
    (rewrite("dev", lambda table: table.assign(prediction="")), "ab",
     "runs/sts/try-b/predictions/dev.csv: row 2: expected prediction to be a number, got ''"),
    (rewrite("dev", lambda table: table.assign(prediction=2)), "ab",
     "runs/sts/try-b/predictions/dev.csv: expected predictions that differ, got 2 in every row"),
    (rewrite("dev", lambda table: table.assign(prediction=table["label"]), False), "ab",
     "runs/sts/try-b/predictions/dev.csv: expected the file that the run wrote, got one that is "
     "missing or changed since"),
    (lambda root: (root / "runs/sts/try-b/predictions/test.csv").unlink(), "ab",
     "runs/sts/try-b/predictions/test.csv: expected the file that the run wrote, got one that is "
     "missing"),
    (made_up, "ab", "runs/sts/try-a/predictions/oof.csv: expected a file that the run wrote, got "
     "none")])
def test_refused(command, three, spoil, members, message):
    """One line, and nothing is written."""
    if spoil:
        spoil(three)
    before = contents(three)
    assert refusal(command(*words(*members))).startswith(message)
    assert contents(three) == before


def test_one_group_refused(command, competition):
    """Rows that all share a sentence cannot be held out."""
    dev = read_csv(competition / "dev.csv").assign(sentence_1="같은 문장")
    dev.to_csv(competition / "dev.csv", index=False)
    for mark in "ab":
        write_member(competition.parent, mark, 0.6)
    assert refusal(command(*words("a", "b"))) == (
        "data.dir: expected dev rows that do not all share sentences, so that some can be held "
        "out, got one group")


def test_real_runs(command, competition, make_encoder, tmp_path):
    """A cross and a bi head trained in earnest blend, and the board lists and recommends."""
    for head in ("cross", "bi"):
        done(command, "stage=sts", *small(make_encoder(), "chain=[sts]", f"sts.head={head}"))
    folders = sorted((tmp_path / "runs/sts").glob("*-*"))
    done(command, *words()[:-1], f"runs=[{','.join(map(str, folders))}]")
    folder = only(tmp_path / "runs/ensemble")
    found = read_json(folder / "ensemble.json")
    assert {member["head"] for member in found["members"]} == {"cross", "bi"}
    submission = read_csv(tmp_path / f"submissions/{folder.name}.csv")
    sample = read_csv(competition / "sample_submission.csv")
    assert submission["id"].tolist() == sample["id"].tolist()
    said = done(command, "stage=board")
    assert f"submissions/{folder.name}.csv" in said
    assert "(24 pairs), the highest of 3 candidates" in said
