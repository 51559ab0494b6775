"""What the stage distill learns from, writes, hands on and refuses.

python -m pytest tests/test_distill.py
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from refusal import contents, refusal
from safetensors.torch import load_file
from toy import RUN, STS, Crash, done, equal, files_of, only, read_csv, read_json, small

from pipeline.data import read_competition
from pipeline.diagnostics.spikes import batches
from pipeline.encoder import load_encoder
from pipeline.history import read_history
from pipeline.stages import distill

DISTILL = ["distill.pairs=40", "distill.batch_size=8", "distill.max_steps=6",
           "distill.eval_every=3", "distill.learning_rate=1e-3"]
MADE = {"silver.csv", "predictions/dev.csv", "model/head.json"}  # beside what every run has


@pytest.fixture
def words(competition, make_encoder) -> list[str]:
    """A command line for a few steps of everything."""
    return small(make_encoder(), *DISTILL)


def teacher(command, words, root, name: str, *more: str) -> Path:
    """A finished sts run."""
    done(command, "stage=sts", *words, "chain=[sts]", f"name={name}", *more)
    return only(root / "runs/sts", f"{name}-*")


@pytest.fixture
def teachers(command, words, tmp_path) -> list[Path]:
    """A bi run, and a cross run of two folds."""
    return [teacher(command, words, tmp_path, "bi", "sts.head=bi"),
            teacher(command, words, tmp_path, "cross", "sts.head=cross", "sts.folds=2")]


def named(*folders: Path) -> str:
    """The teachers as a word of the command line."""
    return f"distill.teachers=[{','.join(map(str, folders))}]"


def test_labels_are_the_teachers_mean(command, words, competition, teachers, tmp_path):
    """Every pair has the mean of what stage=predict says of it for each teacher."""
    done(command, "stage=distill", *words, "chain=[distill]", named(*teachers))
    run = only(tmp_path / "runs/distill")
    assert files_of(run) == RUN | MADE | {"model/head.safetensors"}
    silver = read_csv(run / "silver.csv")
    silver.drop(columns="label").to_csv(tmp_path / "silver.csv", index=False)
    each = []
    for folder in teachers:
        done(command, "stage=predict", f"run={folder}", "pairs=silver.csv", "precision=fp32")
        each.append(read_csv(tmp_path / f"submissions/{folder.name}-silver.csv")["target"])
    np.testing.assert_allclose(silver["label"], np.mean(each, axis=0), atol=1e-4)
    assert np.ptp(each[0] - each[1]) > 0.01
    metrics = read_json(run / "metrics.json")
    assert metrics["pairs"] == len(silver)
    assert metrics["steps"] == 6
    dev = read_csv(run / "predictions/dev.csv")
    assert dev["id"].tolist() == read_csv(competition / "dev.csv")["id"].tolist()
    assert metrics["dev"]["n"] == len(dev) == 24
    assert metrics["dev"]["pearson"]["value"] == pytest.approx(
        dev["prediction"].corr(dev["label"]), abs=1e-5)
    assert f"distill: {len(silver)} pairs, as the teachers see them: 0-1: " in (
        run / "log.txt").read_text(encoding="utf-8")


def test_pairs(command, words, teachers, tmp_path):
    """The competition's own pairs come first, test's too, then as many new ones as asked for."""
    done(command, "stage=distill", *words, "chain=[distill]", named(*teachers))
    silver = read_csv(only(tmp_path / "runs/distill") / "silver.csv")
    data = read_competition(tmp_path / "data")
    known = dict.fromkeys(frozenset(pair) for frame in (data.train, data.dev, data.test)
                          for pair in zip(frame["sentence_1"], frame["sentence_2"], strict=True))
    known = [pair for pair in known if len(pair) == 2]
    found = [frozenset(pair) for pair in zip(silver["sentence_1"], silver["sentence_2"],
                                             strict=True)]
    assert found[:len(known)] == known
    assert len(set(found)) == len(found) == len(known) + 40
    assert {text for pair in found for text in pair} <= {text for pair in known for text in pair}


def test_order_of_teachers(command, words, teachers, tmp_path):
    """Two bi teachers: the order on the command line changes neither the run nor its pairs."""
    other = teacher(command, words, tmp_path, "other", "sts.head=bi", "seed=7")
    tables = []
    for name, folders in (("a", [teachers[0], other]), ("b", [other, teachers[0]])):
        done(command, "stage=distill", *words, "chain=[distill]", f"runs_dir={name}",
             named(*folders))
        tables.append(read_csv(only(tmp_path / name / "distill") / "silver.csv"))
    assert tables[0].equals(tables[1])
    assert [path.name for path in (tmp_path / "a/distill").glob("*-*")] == [
        path.name for path in (tmp_path / "b/distill").glob("*-*")]


def test_teacher_with_source_tokens(command, words, tmp_path):
    """Its own pairs are read with their source, new ones without, as stage=predict reads them."""
    folder = teacher(command, words, tmp_path, "marked", "sts.head=bi", "sts.source_token=true")
    done(command, "stage=distill", *words, "chain=[distill]", named(folder))
    silver = read_csv(only(tmp_path / "runs/distill") / "silver.csv").fillna({"source": ""})
    assert (silver["source"][:-40] != "").all()
    assert (silver["source"][-40:] == "").all()
    targets = {}
    for name, frame in (("marked", silver), ("bare", silver.assign(source=""))):
        frame.drop(columns="label").to_csv(tmp_path / f"{name}.csv", index=False)
        done(command, "stage=predict", f"run={folder}", f"pairs={name}.csv", "precision=fp32")
        targets[name] = read_csv(tmp_path / f"submissions/{folder.name}-{name}.csv")["target"]
    np.testing.assert_allclose(silver["label"], targets["marked"], atol=1e-4)
    assert np.abs(targets["marked"] - targets["bare"])[:-40].max() > 1e-3


def test_more_pairs_than_there_are(command, words, teachers, tmp_path, caplog):
    """All there are are taken, and that is said."""
    done(command, "stage=distill", *words, "chain=[distill]", named(*teachers),
         "distill.pairs=100000")
    assert "warning: distill.pairs: 100000 asked for, all " in caplog.text
    found = read_csv(only(tmp_path / "runs/distill") / "silver.csv")
    assert 200 < len(found) < 100_000


def test_stages_after_it(command, words, teachers, tmp_path):
    """diagnose, predict and export take a student's run; its batches can be made anew."""
    chain = ["chain=[distill,sts]", named(*teachers), "sts.calibrate=monotone", "sts.head=cross"]
    done(command, "stage=sts", *words, *chain, "distill.max_steps=30", "name=student")
    student = only(tmp_path / "runs/distill")
    run = only(tmp_path / "runs/sts", "student-*")
    made = batches(student, read_json(student / "manifest.json"), {},
                   read_competition(tmp_path / "data"))
    silver = read_csv(student / "silver.csv")
    assert [row[2] for row in made.texts] == silver["label"].tolist()
    lengths = load_encoder(str(student / "model")).tokens([row[:2] for row in made.texts]).lengths
    for line in read_history(student / "history.jsonl"):
        if "loss" in line:
            assert line["tokens"] == lengths[made.rows(line["step"])].sum()
    done(command, "stage=diagnose", f"run={run}", "data.dir=data")
    silver.head(5).drop(columns="label").to_csv(tmp_path / "few.csv", index=False)
    done(command, "stage=predict", f"run={student}", "pairs=few.csv")
    done(command, "stage=export", f"run={run}", "export.dir=out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "distill.pairs" in card
    assert str(tmp_path) not in card
    assert "teachers" not in card


def test_calibration_is_left_out(command, words, tmp_path):
    """What a teacher's calibration learnt from dev's labels does not reach the silver labels."""
    labels = []
    for kind in ("none", "monotone"):
        folder = teacher(command, words, tmp_path, kind, "sts.head=bi", f"sts.calibrate={kind}")
        done(command, "stage=distill", *words, "chain=[distill]", f"name={kind}", named(folder))
        labels.append(read_csv(only(tmp_path / "runs/distill", f"{kind}-*") / "silver.csv"))
    assert labels[0].equals(labels[1])


@pytest.mark.parametrize("head", ["cross", "bi"])
def test_student_learns_its_teachers(command, words, teachers, tmp_path, head):
    """Either head's loss on the teachers' labels falls."""
    done(command, "stage=distill", *words, "chain=[distill]", named(*teachers),
         "distill.max_steps=80", "distill.eval_every=40", f"distill.head={head}")
    run = only(tmp_path / "runs/distill")
    losses = [line["loss"] for line in read_history(run / "history.jsonl") if "loss" in line]
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])
    assert files_of(run) == RUN | MADE | (
        {"model/head.safetensors"} if head == "cross" else set())


def test_sts_goes_on_with_encoder_and_head(command, words, teachers, tmp_path):
    """Without a step of its own to speak of, sts predicts what the student does."""
    chain = ["chain=[distill,sts]", named(*teachers), "sts.head=cross"]
    done(command, "stage=sts", *words, *chain, "sts.learning_rate=1e-12", "sts.max_steps=1",
         "name=student")
    student = only(tmp_path / "runs/distill")
    run = only(tmp_path / "runs/sts", "student-*")
    assert files_of(run) == RUN | STS | {"model/head.safetensors"}
    assert read_json(run / "manifest.json")["shape"]["start"] == {
        "run": read_json(student / "manifest.json")["identity"]}
    first, last = (load_file(folder / "model/head.safetensors") for folder in (student, run))
    for name in first:
        torch.testing.assert_close(first[name], last[name])
    scores = [read_json(folder / "metrics.json")["dev"]["pearson"]["value"]
              for folder in (student, run)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def test_a_bi_head_starts_without_the_students_head(command, words, teachers, tmp_path):
    """Only a cross head has weights to go on with."""
    done(command, "stage=sts", *words, "chain=[distill,sts]", named(*teachers), "sts.head=bi",
         "name=student")
    assert files_of(only(tmp_path / "runs/sts", "student-*")) == RUN | STS


def test_identity(command, words, teachers, tmp_path):
    """Teachers count by what they are: not by their folder's name or order."""
    chain = ["stage=distill", *words, "chain=[distill]"]
    done(command, *chain, named(*teachers))
    run = only(tmp_path / "runs/distill")
    moved = teachers[0].rename(teachers[0].with_name("moved"))
    done(command, *chain, named(teachers[1], moved))
    assert "distill: reusing" in (run / "log.txt").read_text(encoding="utf-8")
    assert only(tmp_path / "runs/distill") == run
    done(command, *chain, named(moved))
    assert len(list((tmp_path / "runs/distill").glob("*-*"))) == 2


@pytest.mark.parametrize("is_late", [False, True])
def test_broken_off_and_gone_on_with(command, words, teachers, tmp_path, monkeypatch, is_late):
    """The first attempt's silver pairs are taken up; the end is the same, to the last bit."""
    chain = ["stage=distill", *words, "chain=[distill]", named(*teachers)]
    done(command, *chain, "runs_dir=whole")
    fit, labelled = distill.fit, []

    def broken(*values, **options):
        if is_late:
            fit(*values, **options)
        raise Crash

    monkeypatch.setattr(distill, "fit", broken)
    with pytest.raises(Crash):
        command(*chain)
    monkeypatch.setattr(distill, "fit", fit)
    monkeypatch.setattr(distill, "unlabelled_pairs", lambda *values: labelled.append(values))
    done(command, *chain)
    assert not labelled
    folders = [only(tmp_path / name / "distill") for name in ("whole", "runs")]
    for file in ("model.safetensors", "head.safetensors"):
        assert equal(*(load_file(folder / "model" / file) for folder in folders))
    assert (folders[0] / "silver.csv").read_bytes() == (folders[1] / "silver.csv").read_bytes()


@pytest.mark.parametrize(("changes", "expected"), [
    ([], "distill.teachers: expected 1 or more finished sts runs, got 0"),
    (["distill.teachers=[data]"],
     "distill.teachers: expected the folder of a finished run, got 'data'"),
])
def test_refused(command, words, competition, tmp_path, changes, expected):
    """One line, and nothing is written."""
    before = contents(tmp_path)
    assert refusal(command("stage=distill", *words, "chain=[distill]", *changes)) == expected
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("more", "expected"), [
    (["sts.head=cross"], "distill.teachers: expected a run with sts.head=bi among them, whose "
                         "vectors find neighbours, got none"),
    (["sts.head=bi", "sts.folds=2", "sts.use_dev=true"],
     "distill.teachers: expected runs that were not trained on dev's pairs (else their student "
     "would know them), got {} with sts.use_dev=true"),
])
def test_refused_teachers(command, words, tmp_path, more, expected):
    """Teachers that cannot find neighbours, or that know dev."""
    folder = teacher(command, words, tmp_path, "one", *more)
    found = refusal(command("stage=distill", *words, "chain=[distill]", named(folder)))
    assert found == expected.format(folder)


def test_teachers_of_other_data_are_refused(command, words, teachers, tmp_path):
    """They must be of these train, dev and test."""
    file = tmp_path / "data" / "dev.csv"
    lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    found = refusal(command("stage=distill", *words, "chain=[distill]", named(*teachers)))
    assert found == ("distill.teachers: expected runs on the dev.csv of data.dir, got "
                     f"{teachers[0]} on another")


def test_folds_after_it_are_refused(command, words, teachers):
    """The teachers know the labels of train's held pairs."""
    found = refusal(command("stage=sts", *words, "chain=[distill,sts]", named(*teachers),
                            "sts.folds=2"))
    assert found == ("sts.folds: expected 0, or sts.held=dev, with distill in the chain, whose "
                     "teachers know train's labels, got 2")


def test_folds_of_dev_after_it(command, words, teachers, tmp_path):
    """The teachers do not know dev's labels: every fold begins with the one student."""
    done(command, "stage=sts", *words, "chain=[distill,sts]", named(*teachers), "sts.folds=2",
         "sts.use_dev=true", "sts.held=dev", "name=held")
    student = read_json(only(tmp_path / "runs/distill") / "manifest.json")["identity"]
    members = sorted(tmp_path.glob("runs/sts/held-*/folds/sts/fold*"))
    assert len(members) == 2
    for member in members:
        assert read_json(member / "manifest.json")["shape"]["start"] == {"run": student}


def test_tuned(command, words, teachers, tmp_path):
    """A study over its keys: every trial is a student, the best of them the study's."""
    space = tmp_path / "space.yaml"
    space.write_text("distill.learning_rate: {low: 3e-4, high: 1e-3}\n",
                     encoding="utf-8")
    done(command, "stage=tune", "tune.stage=distill", *words, "chain=[distill]", named(*teachers),
         f"tune.space={space}", "tune.trials=2", "tune.finalist_seeds=[]", "name=students")
    trials = read_csv(only(tmp_path / "runs/tune") / "trials.csv")
    scores = [read_json(tmp_path / folder / "metrics.json")["dev"]["pearson"]["value"]
              for folder in trials["run"]]
    assert trials["value"].tolist() == pytest.approx(scores, abs=1e-6)
    assert scores[0] != scores[1]
