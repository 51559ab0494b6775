"""When finished work is used again, and when it is not.

python -m pytest tests/test_stages_reuse.py
"""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from toy import done, finished_chain, only, read_csv, read_json, small

STAGES = ("simcse", "sts")


def runs(folder: Path) -> set[str]:
    """The run folders, as stage/name."""
    return {f"{path.parent.name}/{path.name}" for path in folder.glob("*/*-*")}


def written(folder: Path) -> dict[str, int]:
    """When each run's weights and predictions were written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns
            for path in folder.rglob("*") if path.suffix in (".safetensors", ".csv", ".jsonl")}


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """Where the finished chain is kept between the tests."""
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def finished(command, competition, make_encoder, tmp_path, cache) -> list[str]:
    """A finished chain of two stages in runs/; the words that made it."""
    words = small(make_encoder())
    finished_chain(command, words, tmp_path, cache)
    assert {name.split("/")[0] for name in runs(tmp_path / "runs")} == set(STAGES)
    return words


@pytest.mark.parametrize("changes", [
    [], ["name=other"], ["device=cpu"], ["name=셋째-이름", "submissions_dir=elsewhere"],
    ["chain=[simcse,sts]", "seed=42", "sts.max_steps=4"]])
def test_reused(command, finished, tmp_path, caplog, changes):
    """The same work under another name, device or spelling is not done again."""
    before, there = written(tmp_path / "runs"), runs(tmp_path / "runs")
    submission = only(tmp_path / "submissions", "*.csv").read_bytes()
    shutil.rmtree(tmp_path / "submissions")
    caplog.clear()
    done(command, "stage=sts", *finished, *changes)
    for stage in STAGES:
        assert f"{stage}: reusing runs/{stage}/" in caplog.text
    assert written(tmp_path / "runs") == before
    assert runs(tmp_path / "runs") == there
    folder = tmp_path / ("elsewhere" if "submissions_dir=elsewhere" in changes else "submissions")
    assert only(folder, "*.csv").read_bytes() == submission


def test_reused_after_a_move(command, finished, competition, make_encoder, tmp_path, caplog):
    """Moved runs, a moved encoder and moved data are the same runs, encoder and data."""
    before = written(tmp_path / "runs")
    (tmp_path / "runs").rename(tmp_path / "moved")
    competition.rename(tmp_path / "other-data")
    shutil.copytree(make_encoder(), tmp_path / "copy")
    caplog.clear()
    words = small(tmp_path / "copy", data="other-data")
    done(command, "stage=sts", *words, "runs_dir=moved")
    assert f"sts: reusing moved/{only(tmp_path / 'moved/sts').relative_to(tmp_path / 'moved')}" in (
        caplog.text)
    assert written(tmp_path / "moved") == before
    assert not (tmp_path / "runs").exists()


def test_reused_from_another_folder(command, finished, tmp_path, monkeypatch, caplog):
    """Absolute paths from another working directory find the same run."""
    before = written(tmp_path / "runs")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    caplog.clear()
    done(command, "stage=sts", *finished, f"data.dir={tmp_path / 'data'}", "runs_dir=../runs")
    assert caplog.text.count("reusing") == 2
    assert written(tmp_path / "runs") == before


def spoil_dev(folder: Path) -> None:
    """Changes one label of dev.csv."""
    table = read_csv(folder / "dev.csv")
    table.loc[0, "label"] = 1.5 if table.loc[0, "label"] != 1.5 else 2.5
    table.to_csv(folder / "dev.csv", index=False)


def spoil_train_label(folder: Path) -> None:
    """Changes one label of train.csv, which simcse does not read."""
    table = read_csv(folder / "train.csv")
    table.loc[3, "label"] = 1.5 if table.loc[3, "label"] != 1.5 else 2.5
    table.to_csv(folder / "train.csv", index=False)


def add_sentence(folder: Path) -> None:
    """One more test pair."""
    table = read_csv(folder / "test.csv")
    more = table.tail(1).assign(id="one-more", sentence_1="전혀 새로운 문장입니다")
    pd.concat([table, more]).to_csv(folder / "test.csv", index=False)
    (folder / "sample_submission.csv").unlink()


@pytest.mark.parametrize(("change", "anew"), [
    ("seed=43", STAGES), ("simcse.learning_rate=2e-3", STAGES), ("encoder.max_length=31", STAGES),
    ("encoder.pooling=cls", STAGES), ("simcse.temperature=0.06", STAGES),
    ("sts.learning_rate=2e-3", ("sts",)), ("sts.head=bi", ("sts",)), ("chain=[sts]", ("sts",)),
    (spoil_dev, STAGES), (spoil_train_label, ("sts",)), (add_sentence, STAGES)])
def test_not_reused(command, finished, competition, tmp_path, change, anew):
    """Whatever shapes a stage makes another run of it, beside the first one."""
    before, there = written(tmp_path / "runs"), runs(tmp_path / "runs")
    words = list(finished)
    if callable(change):
        change(competition)
    else:
        words = [word for word in finished if not word.startswith(change.split("=")[0] + "=")]
        words.append(change)
    done(command, "stage=sts", *words)
    new = runs(tmp_path / "runs") - there
    assert sorted(name.split("/")[0] for name in new) == sorted(anew)
    assert before.items() <= written(tmp_path / "runs").items()
    is_one_chain = anew == STAGES
    for name in new:
        run = tmp_path / "runs" / name
        assert read_json(run / "manifest.json")["status"] == "complete"
        if name.startswith("sts/") and is_one_chain:
            start = read_json(run / "manifest.json")["shape"]["start"]["run"]
            assert any(other.endswith(start) for other in new)


def test_another_encoder_is_another_run(command, finished, make_encoder, tmp_path):
    """An encoder whose weights or architecture differ does not find the first one's runs."""
    words = [word for word in finished if not word.startswith("encoder.path=")]
    done(command, "stage=simcse", *words, f"encoder.path={make_encoder('roberta')}")
    names = sorted(path.name.rsplit("-", 1)[0] for path in (tmp_path / "runs/simcse").glob("*-*"))
    assert names == ["bert", "roberta"]


@pytest.mark.parametrize("stage", STAGES)
def test_force_reruns_the_asked_stage_alone(command, finished, tmp_path, stage):
    """force=true trains the asked stage anew in its folder, with the same result."""
    root = tmp_path / "runs"
    before, there = written(root), runs(root)
    name = only(root / stage).relative_to(root).as_posix()
    model = root / name / "model/model.safetensors"
    content = model.read_bytes()
    (root / name / "leftover.txt").write_text("of an earlier attempt", encoding="utf-8")
    done(command, f"stage={stage}", *finished, "force=true")
    after = written(root)
    assert runs(root) == there
    assert {path for path in after if after[path] == before[path]} == {
        path for path in before if not path.startswith(f"{name}/")}
    assert model.read_bytes() == content
    assert not (root / name / "leftover.txt").exists()
    assert (root / name / "log.txt").read_text(encoding="utf-8").count(f"{stage}: runs/") == 2


@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_damaged_run_is_done_anew(command, finished, tmp_path, caplog, damage):
    """A finished run with a missing or changed file is named, not used, and made again."""
    run = only(tmp_path / "runs/sts")
    weights = run / "model/model.safetensors"
    content = weights.read_bytes()
    if damage == "remove":
        weights.unlink()
    else:
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    caplog.clear()
    done(command, "stage=sts", *finished)
    assert "model/model.safetensors is missing or changed" in caplog.text
    assert "simcse: reusing" in caplog.text
    assert "sts: reusing" not in caplog.text
    assert weights.read_bytes() == content
    assert read_json(run / "manifest.json")["status"] == "complete"


def test_leftovers_of_a_killed_write_are_removed(command, finished, tmp_path):
    """What a kill -9 left of a half-written model is no part of the finished run."""
    run = only(tmp_path / "runs/sts")
    (run / "manifest.json").unlink()
    (run / ".model.999999.tmp").mkdir()
    (run / ".model.999999.tmp/model.safetensors").write_bytes(b"torn")
    done(command, "stage=sts", *finished)
    assert not [path.name for path in run.iterdir() if path.name.startswith(".")]


def test_chain_of_sts_alone(command, competition, make_encoder, tmp_path):
    """chain=[sts] begins with the plain encoder and runs no simcse."""
    done(command, "stage=sts", *small(make_encoder(), "chain=[sts]"))
    assert not (tmp_path / "runs/simcse").exists()
    start = read_json(only(tmp_path / "runs/sts") / "manifest.json")["shape"]["start"]
    assert "run" not in start
    assert "model.safetensors" in start["encoder"]


@pytest.mark.parametrize(("stage", "chain"), [
    ("sts", "[simcse]"), ("simcse", "[sts]"), ("sts", "[]"), ("sts", "[sts,sts]"),
    ("sts", "[simcse,stss]"), ("sts", "[check,sts]")])
def test_chain_errors(command, competition, make_encoder, tmp_path, stage, chain):
    """A chain without the stage, with one twice or with no stage of training ends at once."""
    code, _, err = command(f"stage={stage}", *small(make_encoder(), f"chain={chain}"))
    assert code == 2
    assert err.startswith("error: chain: expected ")
    assert err.rstrip().endswith(f"got {chain}")
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "submissions").exists()
