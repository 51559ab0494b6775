"""Arms × seeds: what is run, shared, computed, written and refused.

python -m pytest tests/test_ablate.py
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib import image
from refusal import refusal
from scipy import stats
from toy import done, only, read_csv, read_json, small

from pipeline.comparison import holm, paired_difference
from pipeline.metrics import RANGES
from pipeline.stages import ablate

ARMS, SEEDS = ["sts", "simcse>sts", "simcse>nli>sts"], ["3", "4"]


def write_nli(folder: Path) -> None:
    """Four premises with three hypotheses each."""
    folder.mkdir()
    rows = [f"{n}번 갔다,{n}번 {hypothesis},{label}" for n in "일이삼사" for hypothesis, label in (
        ("다녀왔다", "entailment"), ("안 갔다", "contradiction"), ("갈까", "neutral"))]
    for name in ("train", "dev"):
        (folder / f"{name}.csv").write_text("\n".join(["premise,hypothesis,label", *rows]) + "\n")


def settings(encoder: Path, *words: str) -> list[str]:
    """Three arms and two seeds of few steps."""
    return small(encoder, f"ablate.arms=[{','.join(ARMS)}]", f"ablate.seeds=[{','.join(SEEDS)}]",
                 "data.nli_dir=nli", "nli.max_steps=2", "nli.batch_size=4", "simcse.max_steps=2",
                 "sts.max_steps=3", "nli.eval_every=2", "sts.eval_every=3", *words)


def test_ablation(command, competition, make_encoder, tmp_path, caplog):
    """Runs are shared, every number is that of the predictions, a second command trains nothing."""
    write_nli(tmp_path / "nli")
    done(command, "stage=ablate", *settings(make_encoder()))
    counts = {stage: len(list((tmp_path / "runs" / stage).glob("*-*")))
              for stage in ("simcse", "nli", "sts")}
    assert counts == {"simcse": 2, "nli": 2, "sts": 6}  # two arms share simcse, once a seed
    folder = only(tmp_path / "runs/ablate")
    assert {path.name for path in folder.iterdir()} == {"ablation.json", "table.csv", "figure.png"}
    found = read_json(folder / "ablation.json")
    assert found["seeds"] == SEEDS
    assert list(found["runs"]) == [row["arm"] for row in found["arms"]] == ARMS

    predictions = {}
    for arm, runs in found["runs"].items():
        manifests = [read_json(tmp_path / run / "manifest.json") for run in runs]
        assert [manifest["shape"]["seed"] for manifest in manifests] == [3, 4]
        tables = [read_csv(tmp_path / run / "predictions/dev.csv") for run in runs]
        labels = tables[0]["label"].to_numpy()
        predictions[arm] = np.stack([part["prediction"] for part in tables])
    assert len({tuple(part) for arm in predictions.values() for part in arm}) == 6
    for row in found["arms"]:
        parts = predictions[row["arm"]]
        assert row["seeds"] == 2
        for name, statistic in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
            one, other = (statistic(part, labels).statistic for part in parts)
            assert row[name]["mean"] == pytest.approx((one + other) / 2)
            assert row[name]["sd"] == pytest.approx(abs(one - other) / np.sqrt(2))
        for low, high in RANGES:
            inside = (labels >= low) & ((labels < high) | (high == 5))
            expected = np.abs(parts - labels)[:, inside].mean() if inside.any() else None
            assert row["mae"][f"{low}-{high}"] == pytest.approx(expected)

    assert "difference" not in found["arms"][0]
    expected = [paired_difference(labels, predictions["sts"], predictions[arm]) for arm in ARMS[1:]]
    corrected = holm([part["p"] for part in expected])
    for row, part, p in zip(found["arms"][1:], expected, corrected, strict=True):
        assert row["difference"] == pytest.approx(part | {"corrected_p": p})
        assert row["difference"]["value"] == pytest.approx(
            row["pearson"]["mean"] - found["arms"][0]["pearson"]["mean"])
        assert row["sentence"].startswith(f"{row['arm']} is ")
        assert row["sentence"] in caplog.text

    table = pd.read_csv(folder / "table.csv")
    assert table["arm"].tolist() == ARMS
    assert table["pearson.mean"].tolist() == pytest.approx(
        [row["pearson"]["mean"] for row in found["arms"]])
    assert pd.isna(table["difference.value"][0])
    assert table["difference.corrected_p"][1:].tolist() == pytest.approx(corrected)
    picture = image.imread(folder / "figure.png")
    assert picture.shape[1] > 1000
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 10

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.safetensors")}
    done(command, "stage=ablate", *settings(make_encoder()))
    assert {path: path.stat().st_mtime_ns
            for path in (tmp_path / "runs").rglob("*.safetensors")} == before
    assert only(tmp_path / "runs/ablate") == folder


def test_one_seed(command, competition, make_encoder, tmp_path, caplog):
    """No spread without a second seed, and two arms are compared all the same."""
    done(command, "stage=ablate", *settings(make_encoder(), "ablate.arms=[sts,simcse>sts]",
                                            "ablate.seeds=[7]"))
    found = read_json(only(tmp_path / "runs/ablate") / "ablation.json")["arms"]
    assert [row["pearson"]["sd"] for row in found] == [None, None]
    assert "(nan)" not in caplog.text
    assert caplog.text.count("(one seed)") == 4
    assert found[1]["difference"]["corrected_p"] == found[1]["difference"]["p"] > 0


@pytest.mark.parametrize(("words", "message"), [
    (["ablate.arms=[sts,simcse]"], "ablate.arms: expected chains that end in sts, such as "
                                   "simcse>sts, got 'simcse'"),
    (["ablate.arms=[sts,sts>simcse]"], "ablate.arms: expected chains that end in sts"),
    (["ablate.arms=[sts]"], "ablate.arms: expected two or more different arms, got [sts]"),
    (["ablate.arms=[]"], "ablate.arms: expected two or more different arms, got []"),
    (["ablate.arms=[sts,sts]"], "ablate.arms: expected two or more different arms, got [sts,sts]"),
    (["ablate.arms=[sts,simsce>sts]"], ""), (["ablate.arms=[sts,sts>sts]"], ""),
    (["ablate.arms=[sts,simcse>>sts]"], ""), (["ablate.arms=[sts,nli>sts]"], ""),
    (["ablate.arms=[sts,distill>sts]"], "distill.teachers: expected 1 or more finished sts runs"),
    (["ablate.arms=[sts,distill>sts]", "sts.folds=2"],
     "sts.folds: expected 0, or sts.held=dev, with distill in the chain"),
    (["ablate.seeds=[1,two]"], "ablate.seeds: expected different whole numbers, got [1,two]"),
    (["ablate.seeds=[1.5]"], "ablate.seeds: expected different whole numbers, got [1.5]"),
    (["ablate.seeds=[-1]"], "ablate.seeds: expected different whole numbers, got [-1]"),
    (["ablate.seeds=[]"], "ablate.seeds: expected different whole numbers, got []"),
    (["ablate.seeds=[1,1]"], "ablate.seeds: expected different whole numbers, got [1,1]"),
    (["ablate.seeds=[1,01]"], "ablate.seeds: expected different whole numbers, got [1,01]"),
    (["ablate.seeds=[²]"], "ablate.seeds: expected different whole numbers, got [²]"),
    (["ablate.seeds=[4294967296]"], "ablate.seeds: expected ")])
def test_refused(command, competition, make_encoder, tmp_path, words, message):
    """At once, before any arm is trained, though the arm at fault is the last one."""
    said = refusal(command("stage=ablate", *settings(make_encoder(), "sts.max_steps=1", *words)))
    assert said.startswith(message)
    assert not list((tmp_path / "runs").glob("*/*-*")), said


def test_drawn_though_the_interval_misses_the_value(tmp_path):
    """A percentile interval need not hold its value (few rows), and NaN is drawn as nothing."""
    rows = [{"arm": arm, "mae": {f"{low}-{high}": 0.5 for low, high in RANGES}} for arm in "abc"]
    rows[1]["difference"] = {"value": 0.3, "low": 0.1, "high": 0.2}
    rows[2]["difference"] = dict.fromkeys(("value", "low", "high"), float("nan"))
    ablate.draw(rows, tmp_path / "figure.png")
    assert image.imread(tmp_path / "figure.png").shape[1] > 1000
