"""What a study leaves: models of the finalists, comparisons, figures, best.yaml.

python -m pytest tests/test_tune_results.py
"""

import json
from collections.abc import Callable

import numpy as np
import optuna
import pandas as pd
import pytest
import yaml
from matplotlib import image
from toy import RUN, STS, done, files_of, only, read_json, toy_task, toy_train
from tuning import study_of, toy_run

from pipeline.comparison import holm, paired_difference
from pipeline.config import KEYS, Config
from pipeline.errors import Pruned
from pipeline.history import read_history
from pipeline.runs import Run, read_manifest
from pipeline.study import best_trials

pytest_plugins = ["tuning"]


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
        return toy_run(part, watch)

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


def test_watched_training(tmp_path):
    """The loop tells every evaluation by its number and ends where it is told, never at the end."""
    told: list[int] = []

    def watch(number: int, evaluation: dict[str, float]) -> bool:
        told.append(number)
        return number == stop

    stop = 3
    with pytest.raises(Pruned) as caught:
        toy_train(tmp_path / "one", toy_task(watch=watch))  # 26 steps, an evaluation every 4
    assert (told, caught.value.folder) == ([1, 2, 3], tmp_path / "one")
    assert max(line["step"] for line in read_history(tmp_path / "one/history.jsonl")) == 12
    told.clear()
    stop = 7
    _, state = toy_train(tmp_path / "other", toy_task(watch=watch))
    assert (told, state.step) == ([1, 2, 3, 4, 5, 6, 7], 26)


def test_real_runs(command, words, competition, tmp_path, monkeypatch, caplog):
    """Trained for real: a pruned run is begun anew, best.yaml gives the same run, figures show."""
    monkeypatch.setattr(optuna.trial.Trial, "should_prune", lambda trial: trial.number == 1)
    words = [*words, "tune.trials=4", "sts.max_steps=2", "sts.eval_every=1",
             "tune.finalist_seeds=[]", "encoder.max_length=16",
             "sts.head=bi"]  # a cross head may still put all pairs below 0 after two steps
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

    said = json.loads((folder / "study.json").read_text(encoding="utf-8"))["said"]
    assert any(line.startswith("importance (share of the variance of the trials' scores, too few "
                               "of them to be trusted): ") for line in said)

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
    assert files_of(pruned) >= RUN | STS
    steps = [json.loads(line)["step"] for line in (pruned / "history.jsonl").open()]
    assert steps == [0, 1, 1, 2, 2]


def test_simcse(command, words, tmp_path, undrawn, caplog):
    """A stage without dev predictions: the finalists' cosines are compared; no run is traced."""
    (tmp_path / "space.yaml").write_text("simcse.temperature: {low: 0.01, high: 0.2}\n")
    done(command, *words, "tune.stage=simcse", "chain=[simcse]", "tune.trials=2",
         "tune.finalist_seeds=[]", "simcse.max_steps=1", "tune.metric=spearman")
    study, found = study_of(tmp_path), read_json(tmp_path / "runs/tune/s/study.json")
    for trial in study.trials:
        metrics = read_json(tmp_path / trial.user_attrs["run"] / "metrics.json")
        assert trial.value == metrics["dev"]["spearman"]["value"]
        assert "measured" not in read_manifest(tmp_path / trial.user_attrs["run"])["shape"]
    assert [part["scores"] for part in found["finalists"]] == [
        [value] for value in sorted((trial.value for trial in study.trials), reverse=True)]
    first, second = (study.trials[part["trial"]] for part in found["finalists"])
    gain = 100 * (first.user_attrs["pearson"] - second.user_attrs["pearson"])
    line = next(line for line in found["said"] if "points of Pearson" in line)
    assert float(line.split(": ")[1].split(" [")[0]) == pytest.approx(gain, abs=0.051)


def test_stages_before(command, words, tmp_path, undrawn):
    """Keys of a stage before vary its runs; models are kept of those that finalists began with."""
    (tmp_path / "space.yaml").write_text("simcse.temperature: {low: 0.01, high: 0.2}\n")
    done(command, *words, "chain=[simcse,sts]", "tune.trials=4", "tune.finalist_seeds=[]",
         "simcse.max_steps=1", "sts.max_steps=1", "tune.metric=spearman")
    study = study_of(tmp_path)
    kept = [*best_trials(study, 2), study.trials[0]]
    kept = {read_json(tmp_path / trial.user_attrs["run"] / "manifest.json")["shape"]["start"]["run"]
            for trial in kept}
    runs = {path.name.rpartition("-")[2]: (path / "model").exists()
            for path in (tmp_path / "runs/simcse").glob("tune-s-*")}
    assert len(runs) == 4
    assert {mark for mark, there in runs.items() if there} == kept
