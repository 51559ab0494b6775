"""The stages simcse and sts through the real entry point, on a tiny encoder: what they write.

python -m pytest tests/test_stages.py
"""

import numpy as np
import pytest
from safetensors.torch import load_file
from scipy import stats
from toy import RUN, STS, done, equal, files_of, only, read_csv, read_json, small

from pipeline.config import SAMPLE
from pipeline.history import read_history


@pytest.fixture
def stale_order(competition) -> list[str]:
    """The ids of a sample submission whose order is not that of test.csv."""
    path = competition / "sample_submission.csv"
    table = read_csv(path)[::-1]
    table.to_csv(path, index=False)
    assert table["id"].tolist() != read_csv(competition / "test.csv")["id"].tolist()
    return table["id"].tolist()


def test_simcse_then_sts(command, competition, make_encoder, tmp_path, stale_order, caplog):
    """Both stages write exactly their files; sts reuses simcse and writes the submission."""
    words = small(make_encoder())
    done(command, "stage=simcse", *words)
    simcse = only(tmp_path / "runs/simcse")
    assert files_of(simcse) == RUN
    done(command, "stage=sts", *words)
    assert f"simcse: reusing runs/simcse/{simcse.name}" in caplog.text
    sts = only(tmp_path / "runs/sts")
    assert files_of(sts) == RUN | STS | {"model/head.safetensors"}
    for run, stage in ((simcse, "simcse"), (sts, "sts")):
        manifest = read_json(run / "manifest.json")
        assert manifest["status"] == "complete"
        assert manifest["stage"] == stage
        assert run.name == f"bert-{manifest['identity']}"
        assert manifest["machine"]["device"] in ("cpu", "cuda", "mps")
        assert {"torch", "transformers", "python", "pipeline"} <= manifest["versions"].keys()
        assert manifest["shape"]["seed"] == 42
        assert manifest["shape"]["settings"]["max_steps"] == 4
        assert manifest["shape"]["precision"] == "fp32"
        assert manifest["started"] <= manifest["finished"]
        assert manifest["files"].keys() == files_of(run) - {"manifest.json", "log.txt"}
        assert "max_steps: 4" in (run / "config.yaml").read_text(encoding="utf-8")
    assert read_json(sts / "manifest.json")["shape"]["start"] == {
        "run": read_json(simcse / "manifest.json")["identity"]}

    assert files_of(tmp_path / "submissions") == {f"{sts.name}.csv", f"{sts.name}.json"}
    table = read_csv(tmp_path / f"submissions/{sts.name}.csv")
    assert list(table.columns) == ["id", "target"]
    assert table["id"].tolist() == stale_order
    assert table["target"].between(0, 5).all()
    assert table["target"].nunique() > 4
    test = read_csv(sts / "predictions/test.csv").set_index("id")["prediction"]
    assert table["target"].tolist() == test[stale_order].tolist()
    origin = read_json(tmp_path / f"submissions/{sts.name}.json")
    assert origin["runs"] == [f"runs/sts/{sts.name}"]
    assert origin["dev"] == read_json(sts / "metrics.json")["dev"]
    assert origin["trial"] is False


def test_metrics_are_scipys(command, competition, make_encoder, tmp_path):
    """metrics.json says of predictions/dev.csv what scipy and numpy say; so does the history."""
    done(command, "stage=sts", *small(make_encoder(), "chain=[sts]", "sts.max_steps=8"))
    run = only(tmp_path / "runs/sts")
    dev, metrics = read_csv(run / "predictions/dev.csv"), read_json(run / "metrics.json")
    truth = read_csv(competition / "dev.csv")
    assert dev["id"].tolist() == truth["id"].tolist()
    assert dev["label"].tolist() == truth["label"].tolist()
    labels, predictions = dev["label"], dev["prediction"]
    assert predictions.between(0, 5).all()
    assert metrics["dev"]["n"] == len(truth) == 24
    pearson = stats.pearsonr(labels, predictions).statistic
    assert metrics["dev"]["pearson"]["value"] == pytest.approx(pearson, abs=1e-4)
    assert metrics["dev"]["spearman"]["value"] == pytest.approx(
        stats.spearmanr(labels, predictions).statistic, abs=1e-4)
    assert metrics["dev"]["pearson"]["low"] < pearson < metrics["dev"]["pearson"]["high"]
    assert metrics["dev"]["mae"] == pytest.approx((labels - predictions).abs().mean(), abs=1e-5)
    assert metrics["dev"]["rmse"] == pytest.approx(
        np.sqrt(((labels - predictions) ** 2).mean()), abs=1e-5)
    low = labels < 1
    assert metrics["ranges"][0]["n"] == low.sum() > 0
    assert metrics["ranges"][0]["mae"] == pytest.approx(
        (labels - predictions)[low].abs().mean(), abs=1e-5)
    mean = read_csv(competition / "train.csv")["label"].mean()
    assert metrics["baseline"]["prediction"] == pytest.approx(mean)
    assert metrics["baseline"]["mae"] == pytest.approx((labels - mean).abs().mean())
    lines = read_history(run / "history.jsonl")
    scores = {line["step"]: line["eval"]["pearson"] for line in lines if "eval" in line}
    assert scores.keys() == {0, 2, 4, 6, 8}
    assert metrics["best_step"] == max((2, 4, 6, 8), key=scores.get)
    assert scores[metrics["best_step"]] == pytest.approx(pearson, abs=1e-4)
    assert metrics["steps"] == 8
    assert "step 8 of 8: dev pearson" in (run / "log.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("head", ["cross", "bi"])
@pytest.mark.parametrize("loss", ["auto", "mse", "l1", "huber", "cosent", "pearson"])
def test_every_head_and_loss(command, competition, make_encoder, tmp_path, head, loss):
    """Each of them trains, and its predictions are on the labels' scale."""
    done(command, "stage=sts", *small(
        make_encoder(), "chain=[sts]", f"sts.head={head}", f"sts.loss={loss}"))
    run = only(tmp_path / "runs/sts")
    assert files_of(run) == RUN | STS | ({"model/head.safetensors"} if head == "cross" else set())
    record = read_json(run / "model/head.json")
    is_fitted = loss in ("cosent", "pearson") or (loss, head) == ("auto", "bi")
    assert (record["scale"] != 1.0) == (record["shift"] != 0.0) == is_fitted
    assert record["head"] == head
    dev = read_csv(run / "predictions/dev.csv")["prediction"]
    assert dev.between(0, 5).all()
    assert dev.nunique() > 4
    losses = [line["loss"] for line in read_history(run / "history.jsonl") if "loss" in line]
    assert len(losses) == 4
    assert all(np.isfinite(losses))
    table = read_csv(only(tmp_path / "submissions", "*.csv"))
    assert table["id"].tolist() == read_csv(competition / "sample_submission.csv")["id"].tolist()
    if is_fitted:  # least squares on train: the level is train's
        assert abs(dev.mean() - read_csv(competition / "train.csv")["label"].mean()) < 1


def test_same_seed_same_bits(command, competition, make_encoder, tmp_path):
    """Two runs_dir, one seed: weights, predictions and submissions are the same to the bit."""
    words, found = small(make_encoder()), []
    for place in ("one", "two"):
        done(command, "stage=sts", *words, f"runs_dir={place}", f"submissions_dir={place}-out")
        run = only(tmp_path / place / "sts")
        simcse = only(tmp_path / place / "simcse")
        found.append((run.name, load_file(run / "model/model.safetensors"),
                      load_file(simcse / "model/model.safetensors"),
                      (run / "predictions/dev.csv").read_bytes(),
                      (tmp_path / f"{place}-out/{run.name}.csv").read_bytes()))
    (name, sts, simcse, dev, submission), other = found
    assert equal(sts, other[1])
    assert equal(simcse, other[2])
    assert (name, dev, submission) == (other[0], *other[3:])


def test_trial(command, make_encoder, tmp_path):
    """Without CSVs it runs on the sample and says so first, in the run's and submission's name."""
    code, out, err = command("stage=sts", *small(make_encoder(), "data.dir=none"))
    assert code == 0, err
    assert out.splitlines()[0].startswith("trial:")
    for folder in (tmp_path / "runs/simcse", tmp_path / "runs/sts"):
        assert only(folder).name.startswith("trial")
    path = only(tmp_path / "submissions", "*.csv")
    assert path.name.startswith("trial")
    assert read_json(path.with_suffix(".json"))["trial"] is True


def test_no_trial_with_csvs(command, competition, make_encoder, tmp_path):
    """CSVs in data/ are used, and nothing says trial."""
    words = small(make_encoder(), "data.dir=none", "chain=[sts]")
    assert "trial" not in done(command, "stage=sts", *words)
    assert only(tmp_path / "runs/sts").name.startswith("bert-")
    assert len(read_csv(only(tmp_path / "submissions", "*.csv"))) == 16


def test_trial_after_the_same_run_by_hand(command, make_encoder, tmp_path):
    """A run on the sample that was no trial does not give a trial's submission its name."""
    words = small(make_encoder(), "chain=[sts]")
    done(command, "stage=sts", *words[1:], f"data.dir={SAMPLE}")
    done(command, "stage=sts", *small(make_encoder(), "data.dir=none", "chain=[sts]"))
    assert len(list((tmp_path / "submissions").glob("trial-*.csv"))) == 1
    assert len(list((tmp_path / "submissions").glob("bert-*.csv"))) == 1


@pytest.mark.parametrize("stage", ["simcse", "sts"])
def test_dev_labels_that_are_all_equal(command, competition, make_encoder, tmp_path, stage):
    """No correlation can be measured, but the stage trains, completes and says so."""
    path = competition / "dev.csv"
    read_csv(path).assign(label=2.0).to_csv(path, index=False)
    done(command, f"stage={stage}", *small(make_encoder(), f"chain=[{stage}]"))
    run = only(tmp_path / "runs" / stage)
    assert read_json(run / "manifest.json")["status"] == "complete"
    assert read_json(run / "metrics.json")["dev"]["pearson"]["value"] is None
    assert read_json(run / "metrics.json")["best_step"] == -1
