"""A few of each kind of disturbance; `python -m tests.faults.kills` does many.

python -m pytest tests/faults
"""

import faults
import kills
import pytest


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """The words of a chain, and the results, seconds and writes of an undisturbed one."""
    folder = tmp_path_factory.mktemp("chain")
    words = faults.prepare(folder)
    return words, *kills.undisturbed(words, folder / "undisturbed")


def test_killed_at_random_moments(chain, tmp_path):
    """kill -9, the same command again and again: bit for bit the undisturbed end."""
    words, right, seconds, _ = chain
    assert kills.by_time(words, tmp_path, right, seconds, 3, seed=3)["killed"] >= 3


@pytest.mark.parametrize(("kind", "count"), [("writes", 3), ("full", 3), ("denied", 2)])
def test_disturbed_at_writes(chain, tmp_path, kind, count):
    """In the middle of a write: one line and exit 2 (or the end), then the undisturbed result."""
    words, right, _, writes = chain
    assert kills.at_writes(words, tmp_path, right, writes, count, 1, kind)["disturbed"] == count
