"""Studies: what is searched, counted, pruned, recorded, kept, taken up again and concluded.

Most tests put a toy in the place of the training: a score that is a function of the settings.

python -m pytest tests/test_tune.py
"""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
import pandas as pd
import pytest
import yaml
from matplotlib import image
from refusal import refusal
from toy import done, files_of, only, read_json, small

import run as entry
from pipeline.comparison import holm, paired_difference
from pipeline.config import KEYS, Config, recorded, without_password
from pipeline.data import read_competition
from pipeline.errors import NotFinite, Pruned, Stopped, UserError
from pipeline.files import write_json, write_text
from pipeline.metrics import pearson
from pipeline.runs import Run, identity, read_manifest
from pipeline.stages import finalists, trials
from pipeline.study import best_trials, counted, open_storage

BEST = 2e-3  # the toy's best learning rate
SPACE = """
sts.learning_rate: {low: 1e-4, high: 1e-1, log: true}
sts.weight_decay: {low: 0.0, high: 0.1}
"""
RECORD = {"config.yaml", "manifest.json", "history.jsonl", "metrics.json", "log.txt",
          "predictions/dev.csv", "predictions/test.csv"}


def toy(part: Config, watch: Callable | None) -> Run:
    """A run folder whose dev predictions are the better, the nearer the learning rate is to BEST.

    Its evaluations climb to the final score in three steps.
    """
    miss = abs(np.log10(part.sts.learning_rate / BEST))
    labels = read_competition(Path(part.data.dir)).dev["label"].to_numpy()
    noise = np.random.default_rng(0).normal(size=len(labels))
    other = np.random.default_rng(part.seed).normal(size=len(labels))
    dev = np.clip(labels + miss * noise + 0.1 * other, 0, 5)
    run = Run(Path(part.runs_dir) / "sts" / f"{part.name}-", {
        "stage": "sts", "seed": part.seed, "start": {}, "settings": repr(part.sts)})
    run.folder = Path(f"{run.folder}{identity(run.shape)}")
    run.begin("", "", {})
    for number in (1, 2, 3):
        scores = {"pearson": float(pearson(dev, labels)) * number / 3, "spearman": 0.0}
        if watch and watch(number, scores) and number < 3:
            raise Pruned(run.folder, number)
    write_text(run.model / "weights", "many bytes")
    score = {"value": float(pearson(dev, labels)), "low": -1.0, "high": 1.0}
    write_json(run.folder / "metrics.json", {"dev": {"pearson": score, "spearman": score}})
    write_text(run.folder / "predictions" / "dev.csv",
               pd.DataFrame({"label": labels, "prediction": dev}).to_csv(index=False))
    run.finish(1.0)
    return run


@pytest.fixture
def toys(monkeypatch) -> Callable:
    """`toys(function)` puts it in the place of the training; it gets the toy's arguments.

    What makes a trial of milliseconds slow is left out: collecting garbage, flushing to disk.
    """
    monkeypatch.setattr("optuna.study._optimize.gc.collect", lambda: 0)
    monkeypatch.setattr(os, "fsync", lambda handle: None)

    def put(function: Callable) -> None:
        for module in (trials, finalists):
            monkeypatch.setattr(module, "complete",
                                lambda part, watch=None: function(part, watch))

    put(toy)
    return put


@pytest.fixture
def words(competition, make_encoder, tmp_path) -> list[str]:
    """A command of a small study; no pruning."""
    (tmp_path / "space.yaml").write_text(SPACE, encoding="utf-8")
    return ["stage=tune", *small(make_encoder(), "chain=[sts]", "tune.space=space.yaml",
                                 "tune.study=s", "tune.trials=6", "tune.startup=4",
                                 "tune.finalists=2", "tune.finalist_seeds=[7]"),
            "tune.pruner=none"]


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Leaves the figures out, which take longer than all else."""
    monkeypatch.setattr("pipeline.stages.tune.draw", lambda *arguments: None)


def study_of(folder: Path, url: str = "") -> optuna.Study:
    """The study s below runs/ of the folder."""
    return optuna.load_study(study_name="s", storage=open_storage(folder / "runs/tune/s", url))


def values(study: optuna.Study) -> list[dict]:
    """The values of the trials that count, in their order."""
    return [trial.params for trial in counted(study)]


def test_search(command, toys, words, tmp_path, undrawn, caplog):
    """Trial 0 is the untuned one; the best is found; the same command again changes nothing."""
    done(command, *words, "tune.trials=24", "tune.startup=8")
    study = study_of(tmp_path)
    assert len(study.trials) == 24
    assert study.trials[0].params == {"sts.learning_rate": 1e-3, "sts.weight_decay": 0.01}
    found = [trial.params["sts.learning_rate"] for trial in study.trials]
    assert all(1e-4 <= value <= 1e-1 for value in found)
    assert len(set(found)) == 24
    assert abs(np.log10(study.best_params["sts.learning_rate"] / BEST)) < 0.1
    miss = np.abs(np.log10(np.array(found) / BEST))
    assert miss[13:].mean() < miss[1:9].mean()  # it searches where it is good
    caplog.clear()
    trained = []
    toys(lambda part, watch: trained.append(part) or toy(part, watch))
    done(command, *words, "tune.trials=24", "tune.startup=8")
    assert len(study_of(tmp_path).trials) == 24
    assert {part.seed for part in trained} == {7, 42}  # finalists alone, which real runs reuse
    assert len(trained) == 6


def test_broken_off_and_repeated(command, toys, words, tmp_path, undrawn):
    """Stopped by SIGTERM, Ctrl-C and a fault, then continued: the values of an unbroken study."""
    done(command, *words, "runs_dir=unbroken/runs")
    expected = values(study_of(tmp_path / "unbroken"))
    assert len(expected) == 6
    ends = {2: Stopped(signal.SIGTERM, 3), 4: KeyboardInterrupt(), 5: RuntimeError("a fault")}
    calls = []

    def breaking(part: Config, watch: Callable | None) -> Run:
        calls.append(part.sts.learning_rate)
        if error := ends.pop(len(calls), None):
            raise error
        return toy(part, watch)

    toys(breaking)
    code, _, err = command(*words)
    assert (code, err.splitlines()[-1]) == (143, f"error: {Stopped(signal.SIGTERM, 3)}")
    assert command(*words)[0] == 130
    with pytest.raises(RuntimeError):
        command(*words)
    done(command, *words)
    study = study_of(tmp_path)
    assert values(study) == expected
    assert calls[1] == calls[2] == expected[1]["sts.learning_rate"]
    table = pd.read_csv(tmp_path / "runs/tune/s/trials.csv")
    assert table["state"].tolist().count("interrupted") == 3
    assert table["state"].tolist().count("complete") == 6


def work(words: list[str], calls: str, together: int, hang_at: int) -> None:
    """A worker in a process of its own, which notes what it trains.

    It begins when so many workers are there and hangs at a call.
    """
    mine = []

    def slow(part: Config, watch: Callable | None) -> Run:
        mine.append(part)
        with open(calls, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {part.seed} {part.sts.learning_rate}\n")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (
                len(mine) == hang_at or len(workers_of(Path(calls))) < together):
            time.sleep(0.02)
        return toy(part, watch)

    trials.complete = finalists.complete = lambda part, watch=None: slow(part, watch)
    entry.main(words)


def workers_of(calls: Path) -> set[str]:
    """The workers that have trained something."""
    return {line.split()[0] for line in calls.read_text(encoding="utf-8").splitlines()}


def start(words: list[str], calls: Path, together: int = 1, hang_at: int = 0) -> object:
    """Starts a worker as a copy of this process, which has everything imported."""
    process = multiprocessing.get_context("fork").Process(
        target=work, args=(words, str(calls), together, hang_at))
    process.start()
    return process


@pytest.mark.parametrize("storage", ["", "sqlite:///tune.db"])
def test_two_workers(command, toys, words, tmp_path, undrawn, storage):
    """Both take part, no trial is done twice, the total is exact, one of them concludes."""
    words = [*words, "tune.trials=9", f"tune.storage={storage}"]
    workers = [start(words, tmp_path / "calls", together=2) for _ in range(2)]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    searched = [value for _, seed, value in calls if seed == "42"]
    assert len(workers_of(tmp_path / "calls")) == 2
    study = study_of(tmp_path, storage)
    assert len(counted(study)) == 9
    states = [trial.state for trial in counted(study)]
    assert states == [optuna.trial.TrialState.COMPLETE] * 9
    assert {str(part["sts.learning_rate"]) for part in values(study)} == set(searched)
    assert len(set(searched)) == 9
    assert (tmp_path / "runs/tune/s/best.yaml").exists()
    assert not list((tmp_path / "runs/tune/s").glob(".worker-*"))


def test_killed(command, toys, words, tmp_path, undrawn, caplog):
    """kill -9 in the third trial: the next command tries its values again and counts right."""
    worker, calls = start(words, tmp_path / "calls", hang_at=3), tmp_path / "calls"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (
            not calls.exists() or len(calls.read_text().splitlines()) < 3):
        time.sleep(0.02)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(60)
    study = study_of(tmp_path)
    assert study.trials[2].state == optuna.trial.TrialState.RUNNING
    values_then = study.trials[2].params
    done(command, *words)
    study = study_of(tmp_path)
    assert "trial 2: its worker was killed; its values are tried again" in caplog.text
    assert study.trials[2].state == optuna.trial.TrialState.FAIL
    assert study.trials[3].params == values_then
    assert study.trials[3].user_attrs["again"] == 2
    assert len(counted(study)) == 6


def test_living_workers_are_left_alone(command, toys, words, tmp_path, undrawn, caplog):
    """A trial that another worker runs is neither taken from it nor done twice."""
    done(command, *words, "tune.trials=1")
    worker = start(words, tmp_path / "calls", hang_at=1)
    while not (tmp_path / "calls").exists():
        time.sleep(0.02)
    try:
        done(command, *words, "tune.trials=3")
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.join(60)
    states = [trial.state.name for trial in study_of(tmp_path).trials]
    assert states == ["COMPLETE", "RUNNING", "COMPLETE"]
    assert "other workers are still at 1 trials" in caplog.text


def test_failures(command, toys, words, tmp_path, undrawn, caplog):
    """NaN, a refused value and a constant prediction: a reason each, and the study goes on."""
    calls = []

    def failing(part: Config, watch: Callable | None) -> Run:
        calls.append(part)
        if len(calls) == 2:
            folder = tmp_path / "runs/sts/tune-s-0123456789"
            write_json(folder / "manifest.json", {"status": "running", "identity": "0123456789"})
            write_text(folder / "checkpoints" / "newest", "many bytes")
            raise NotFinite("step 3: expected a finite loss, got nan", folder)
        if len(calls) == 3:
            raise UserError("sts.batch_size: expected at most 48,\ngot 64")
        found = toy(part, watch)
        if len(calls) == 4:
            nothing = {"value": None, "low": None, "high": None}
            write_json(found.folder / "metrics.json", {"dev": {"pearson": nothing,
                                                               "spearman": nothing}})
        return found

    toys(failing)
    done(command, *words)
    study = study_of(tmp_path)
    reasons = [trial.user_attrs.get("reason") for trial in study.trials]
    assert reasons == [None, "step 3: expected a finite loss, got nan",
                       "sts.batch_size: expected at most 48, got 64",
                       "dev Pearson is no number: predictions or labels are constant", None, None]
    table = pd.read_csv(tmp_path / "runs/tune/s/trials.csv")
    assert table["state"].tolist() == ["complete", "fail", "fail", "fail", "complete", "complete"]
    assert table["reason"].fillna("").tolist() == [reason or "" for reason in reasons]
    folder = tmp_path / "runs/sts/tune-s-0123456789"
    assert files_of(folder) == {"manifest.json"}
    assert read_manifest(folder)["status"] == "failed"
    assert "6 trials, 3 complete, 0 pruned, 3 failed" in caplog.text


def test_own_settings_refused(command, toys, words, tmp_path):
    """What is refused in the untuned configuration is the command's fault, and no trial."""
    def refuse(part: Config, watch: Callable | None) -> Run:
        raise UserError("no such encoder")

    toys(refuse)
    assert refusal(command(*words)).endswith("no such encoder")
    assert values(study_of(tmp_path)) == []


def test_nothing_gave_a_score(command, toys, words, tmp_path):
    """One line with the last reason; the table is written."""
    def diverge(part: Config, watch: Callable | None) -> Run:
        raise NotFinite("step 1: nan", tmp_path / "nowhere")

    toys(diverge)
    assert refusal((lambda found: (found[0], found[1], found[2].splitlines()[-1] + "\n"))(
        command(*words))) == ("tune: expected a trial with a score, got none of 6; the last one: "
                              "step 1: nan")
    assert len(pd.read_csv(tmp_path / "runs/tune/s/trials.csv")) == 6


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_pruning(command, toys, words, tmp_path, undrawn, pruner):
    """Poor trials end at an evaluation; good ones do not; what is pruned keeps no model."""
    done(command, *words, "tune.trials=20", "tune.startup=4", f"tune.pruner={pruner}")
    study = study_of(tmp_path)
    pruned = [trial for trial in study.trials if trial.state.name == "PRUNED"]
    ended = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    assert len(pruned) + len(ended) == 20
    assert len(pruned) >= 3
    assert min(trial.number for trial in pruned) >= (4 if pruner == "median" else 1)
    assert all(list(trial.intermediate_values) == [1, 2, 3][:trial.last_step] for trial in pruned)
    assert all(trial.last_step < 3 for trial in pruned)
    miss = [np.mean([abs(np.log10(trial.params["sts.learning_rate"] / BEST)) for trial in part])
            for part in (ended, pruned)]
    assert miss[0] < miss[1]
    for trial in pruned:
        folder = tmp_path / trial.user_attrs["run"]
        assert read_manifest(folder)["status"] == "pruned"
        assert files_of(folder) == {"config.yaml", "manifest.json"}


def test_disk(command, toys, words, tmp_path, undrawn):
    """Models of the finalists alone remain; predictions and metrics of every trial do."""
    done(command, *words, "tune.trials=9")
    study = study_of(tmp_path)
    kept = {trial.user_attrs["run"] for trial in best_trials(study, 2)}
    kept.add(study.trials[0].user_attrs["run"])
    assert len(kept) in (2, 3)
    for trial in study.trials:
        folder = tmp_path / trial.user_attrs["run"]
        assert {"metrics.json", "predictions/dev.csv"} <= files_of(folder)
        assert (folder / "model").exists() == (trial.user_attrs["run"] in kept)
        assert read_manifest(folder)["status"] == (
            "complete" if trial.user_attrs["run"] in kept else "scored")


def test_runs_of_others_are_left_alone(command, toys, words, tmp_path, undrawn):
    """A finished run that a trial reuses, not made by the study, keeps its model."""
    def reused(part: Config, watch: Callable | None) -> Run:
        part.name = "mine"
        return toy(part, watch)

    toys(reused)
    done(command, *words)
    assert len(list((tmp_path / "runs/sts").glob("mine-*/model"))) == 6 + len(
        read_json(tmp_path / "runs/tune/s/study.json")["finalists"])


def test_conclusion(command, toys, words, tmp_path, undrawn, caplog):
    """Means, deviations, differences and the choice are those of the finalists' files."""
    done(command, *words, "tune.finalist_seeds=[7,8]", "sts.learning_rate=8e-2")
    found = read_json(tmp_path / "runs/tune/s/study.json")
    assert found["seeds"] == [42, 7, 8]
    dev = {}
    for part in found["finalists"]:
        tables = [pd.read_csv(tmp_path / run / "predictions/dev.csv") for run in part["runs"]]
        scores = [np.corrcoef(table["prediction"], table["label"])[0, 1] for table in tables]
        assert part["scores"] == pytest.approx(scores)
        assert part["mean"] == pytest.approx(np.mean(scores))
        assert part["sd"] == pytest.approx(np.std(scores, ddof=1))
        dev[part["trial"]] = np.stack([table["prediction"] for table in tables])
        labels = tables[0]["label"].to_numpy()
    means = [part["mean"] for part in found["finalists"]]
    assert means == sorted(means, reverse=True)
    first, second, last = dev
    assert last == 0  # the untuned one is the worst of them, and among them all the same
    pairs = [paired_difference(labels, dev[other], dev[first]) for other in (second, 0)]
    for name, part, p in zip((f"trial {second}", "trial 0 (untuned)"), pairs,
                             holm([part["p"] for part in pairs]), strict=True):
        line = next(line for line in found["said"] if f"trial {first} is" in line
                    and name in line)
        assert f"{100 * part['value']:+.1f} [" in line
        assert f"corrected p {p:.3f}" in line
        assert line in caplog.text
    assert found["best"] == found["finalists"][0]["values"]


@pytest.mark.parametrize(("changes", "message"), [
    (["sts.epochs=4"], "sts"), (["tune.trials=2", "tune.finalists=3"], ""),
    (["sts.patience=3"], "sts"), (["seed=1"], "seed"), (["tune.metric=spearman"], "tune.metric"),
    (["tune.space=other.yaml"], "tune.space")])
def test_another_study_under_the_same_name(command, toys, words, tmp_path, undrawn, changes,
                                           message):
    """Trials that could not be compared are refused; more of them, or another end, are not."""
    (tmp_path / "space.yaml").write_text(SPACE + "sts.epochs: {choices: [3, 4]}\n")
    (tmp_path / "other.yaml").write_text("sts.epochs: {choices: [3, 4, 5]}\n")
    done(command, *words, "tune.trials=1")
    result = command(*words, "tune.trials=1", *changes)
    if message:
        assert refusal(result) == ("tune.study: expected a new name, got 's', which was begun "
                                   f"with another {message}")
    else:
        assert result[0] == 0, result[2]


@pytest.mark.parametrize(("changes", "message"), [
    (["force=true"], "force: expected false with stage=tune, got true"),
    (["chain=[simcse]"], "chain: expected sts in it, which is tuned, got [simcse]"),
    (["tune.finalist_seeds=[42]"], "tune.finalist_seeds: expected different whole numbers other "
                                   "than seed (42), got [42]"),
    (["tune.finalist_seeds=[a]"], "tune.finalist_seeds: expected different whole numbers"),
    (["tune.space=none.yaml"], "tune.space: expected a YAML file, got 'none.yaml', which is none"),
    (["tune.study=../s"], "tune.study: expected at most 70 letters"),
    (["tune.finalists=1"], "tune.finalists: expected 2 or more, got 1"),
    (["tune.storage=nodb://u:secret@h/d"], "tune.storage: expected a database that answers, got "
                                           "nodb://u:***@h/d: ")])
def test_refused(command, words, tmp_path, changes, message):
    """One line, before anything is trained."""
    said = refusal(command(*words, *changes))
    assert said.startswith(message)
    assert "secret" not in said
    assert {path.name for path in tmp_path.rglob("runs/**/*") if path.is_file()} <= {".lock"}


@pytest.mark.parametrize(("url", "shown"), [
    ("postgresql://me:pa:s@s@host:5432/db", "postgresql://me:***@host:5432/db"),
    ("mysql+pymysql://me@host/db?password=secret", "mysql+pymysql://me@host/db"),
    ("postgresql://host:5432/db", "postgresql://host:5432/db"),
    ("sqlite:///a/b.db", "sqlite:///a/b.db"), ("", "")])
def test_passwords_are_not_recorded(url, shown):
    """Neither in a run's config.yaml nor beside a submission."""
    config = Config()
    config.tune.storage = url
    assert without_password(url) == shown
    assert recorded(config)["tune"]["storage"] == shown
    assert config.tune.storage == url


def test_real_runs(command, words, competition, tmp_path, monkeypatch, caplog):
    """Trained for real: a pruned run is begun anew, best.yaml gives the same run, figures show."""
    monkeypatch.setattr(optuna.trial.Trial, "should_prune", lambda trial: trial.number == 1)
    words = [*words, "tune.trials=4", "sts.max_steps=2", "sts.eval_every=1",
             "tune.finalist_seeds=[]", "encoder.max_length=16"]
    done(command, *words)
    study, folder = study_of(tmp_path), tmp_path / "runs/tune/s"
    assert [trial.state.name for trial in study.trials] == [
        "COMPLETE", "PRUNED", "COMPLETE", "COMPLETE"]
    pruned = tmp_path / study.trials[1].user_attrs["run"]
    assert files_of(pruned) == {"config.yaml", "manifest.json", "history.jsonl", "log.txt"}
    assert {json.loads(line)["step"] for line in (pruned / "history.jsonl").open()} == {0, 1}
    for name in ("history", "slice", "parallel", "importance"):
        picture = image.imread(folder / f"{name}.png")
        assert min(picture.shape[:2]) > 300
        assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 10

    best = study.best_trial
    text = (folder / "best.yaml").read_text(encoding="utf-8")
    assert text.startswith(f"# trial {best.number}")
    assert f"{best.value:.4f} [" in text.splitlines()[0]
    assert all(line.startswith("#") or line.endswith(":") or "  # " in line
               for line in text.splitlines())
    assert yaml.safe_load(text)["sts"]["learning_rate"] == best.params["sts.learning_rate"]
    caplog.clear()
    monkeypatch.chdir(tmp_path)
    done(command, "stage=sts", "preset=runs/tune/s/best.yaml", f"data.dir={competition}")
    assert f"sts: reusing {best.user_attrs['run']}" in caplog.text
    submission = read_json(only(tmp_path / "submissions", "*.json"))
    assert submission["dev"]["pearson"]["value"] == best.value

    settings = [f"{key}={value}" for key, value in study.trials[1].params.items()]
    keep = [word for word in words if word.partition("=")[0] in KEYS
            and not word.startswith(("stage=", "tune."))]
    done(command, "stage=sts", *keep, *settings)
    assert read_manifest(pruned)["status"] == "complete"
    assert RECORD | {"model/model.safetensors"} <= files_of(pruned)
    steps = [json.loads(line)["step"] for line in (pruned / "history.jsonl").open()]
    assert steps == [0, 1, 1, 2, 2]
