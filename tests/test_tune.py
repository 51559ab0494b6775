"""Studies: what is searched, pruned, recorded and refused.

python -m pytest tests/test_tune.py
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from refusal import refusal
from toy import done, files_of
from tuning import BEST, SPACE, study_of, toy_run, values

from pipeline.config import Config, recorded, without_password
from pipeline.errors import NotFinite, OutOfMemory, UserError
from pipeline.files import write_json, write_text
from pipeline.runs import Run, read_manifest

pytest_plugins = ["tuning"]


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
    toys(lambda part, watch: trained.append(part) or toy_run(part, watch))
    done(command, *words, "tune.trials=24", "tune.startup=8")
    assert len(study_of(tmp_path).trials) == 24
    assert {part.seed for part in trained} == {7, 42}  # finalists alone, which real runs reuse
    assert len(trained) == 6


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
        if len(calls) == 5:
            raise OutOfMemory("out of memory: lower sts.batch_size")
        found = toy_run(part, watch)
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
                       "dev Pearson is no number: predictions or labels are constant",
                       "out of memory: lower sts.batch_size", None]
    table = pd.read_csv(tmp_path / "runs/tune/s/trials.csv")
    assert table["state"].tolist() == ["complete", "fail", "fail", "fail", "fail", "complete"]
    assert table["reason"].fillna("").tolist() == [reason or "" for reason in reasons]
    folder = tmp_path / "runs/sts/tune-s-0123456789"
    assert files_of(folder) == {"manifest.json"}
    assert read_manifest(folder)["status"] == "failed"
    assert "6 trials, 2 complete, 0 pruned, 4 failed" in caplog.text


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


@pytest.mark.parametrize("stage", ["nli", "simcse"])
def test_other_data_of_a_stage_before(command, toys, words, tmp_path, undrawn, stage):
    """Inference pairs and extra sentences shape the trials too: a study does not mix them."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for part in ("train", "dev"):
            (tmp_path / name / f"{part}.csv").write_text(
                f"premise,hypothesis,label\n가,{name},neutral\n", "utf-8")
        (tmp_path / f"{name}.txt").write_text(name, "utf-8")
    words = [*words, f"chain=[{stage},sts]", "tune.trials=1"]
    one, two = ([f"data.nli_dir={name}", f"data.extra=[{name}.txt]"] for name in ("one", "two"))
    done(command, *words, *one)
    done(command, *words, *one)
    assert refusal(command(*words, *two)) == (
        "tune.study: expected a new name, got 's', which was begun with another data")


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
