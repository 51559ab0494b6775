"""Hashes of texts: what came before, in 8 bytes a text.

    python -m pytest tests/test_hashes.py
"""

import subprocess
import sys
import tracemalloc

import numpy as np
import pandas as pd

from pipeline.corpus import unlabelled
from pipeline.hashes import hashes, known, merged

NONE = np.zeros(0, np.uint64)


def test_known_as_a_set_has_it():
    """Parts of random texts, many of them twice, against Python's own set."""
    random, seen, before = np.random.default_rng(0), NONE, set()
    for _ in range(20):
        texts = [f"가{number}" for number in random.integers(0, 400, 50)]
        marks = hashes(texts)
        assert known(seen, marks).tolist() == [text in before for text in texts]
        seen, before = merged(seen, marks), before | set(texts)
        assert (np.diff(seen.astype(np.float64)) >= 0).all()
    assert len(np.unique(seen)) == len(before) > 300


def test_hashes_of_another_process():
    """Processes of one training must leave out the same sentences."""
    code = "from pipeline.hashes import hashes; print(*hashes(['가 나', '', 'a\\0b', 'a']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = hashes(["가 나", "", "a\0b", "a"])
    assert done.stdout.split() == [str(mark) for mark in here]
    assert len(set(here.tolist())) == 4


def test_sentences_once_in_little_memory(tmp_path):
    """Each distinct one comes once; at most 24 bytes are held for it: 8, and 8 of a copy."""
    path, peaks = tmp_path / "x.txt", []
    frame = pd.DataFrame({"sentence_1": ["문장 1"], "sentence_2": ["문장 0"]})
    for rows in (45_000, 90_000):
        distinct = 2 * rows // 3
        path.write_text("".join(f"문장 {number % distinct}\n" for number in range(rows)),
                        encoding="utf-8")
        tracemalloc.start()
        count = sum(1 for _ in unlabelled([frame], [path]))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert count == distinct
    assert list(unlabelled([frame], [path]))[:3] == ["문장 1", "문장 0", "문장 2"]
    assert peaks[1] - peaks[0] < 24 * 30_000, peaks
