"""Search spaces: what a file may say, and the one line that refuses the rest.

python -m pytest tests/test_space.py
"""

from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from pipeline.config import KEYS, SAMPLE, Config
from pipeline.errors import UserError
from pipeline.layers import load, presets
from pipeline.space import described, read_space

SPACES = SAMPLE.parent.parent / "configs" / "spaces"


def read(tmp_path: Path, text: str, config: Config | None = None) -> dict:
    """The space of this text, for sts after simcse."""
    (tmp_path / "space.yaml").write_text(text, encoding="utf-8")
    return read_space(tmp_path / "space.yaml", ["simcse", "sts", "encoder"], config or Config())


def test_ranges(tmp_path):
    """Every form becomes Optuna's distribution with the key's own type."""
    space = read(tmp_path, """
sts.learning_rate: {low: 1e-5, high: 1.0e-4, log: true}
sts.warmup_ratio: {low: 0, high: 0.3, step: 0.1}
sts.batch_size: {low: 16, high: 64, step: 16}
encoder.max_length: {low: 64, high: 256, log: true}
sts.epochs: {choices: [2, 3]}
sts.head: {choices: [cross, bi]}
simcse.drop_last: {choices: [true, false]}
""")
    assert space == {
        "sts.learning_rate": FloatDistribution(1e-5, 1e-4, log=True),
        "sts.warmup_ratio": FloatDistribution(0.0, 0.3, step=0.1),
        "sts.batch_size": IntDistribution(16, 64, step=16),
        "encoder.max_length": IntDistribution(64, 256, log=True),
        "sts.epochs": CategoricalDistribution([2.0, 3.0]),
        "sts.head": CategoricalDistribution(["cross", "bi"]),
        "simcse.drop_last": CategoricalDistribution([True, False])}
    assert all(type(value) is float for value in space["sts.epochs"].choices)
    assert described(space["sts.learning_rate"]) == "1e-05 to 0.0001, log"
    assert described(space["sts.batch_size"]) == "16 to 64, step 16"
    assert described(space["sts.head"]) == "one of cross, bi"


@pytest.mark.parametrize(("text", "message"), [
    ("sts.learnign_rate: {low: 1, high: 2}", "unknown key 'sts.learnign_rate'; did you mean "
                                             "sts.learning_rate?"),
    ("seed: {low: 1, high: 2}", "seed: expected a key that shapes the tuned stage (simcse.*, "
                                "sts.*, encoder.*), got one that does not"),
    ("nli.batch_size: {low: 16, high: 64}", "nli.batch_size: expected a key that shapes the tuned"),
    ("data.extra: {choices: [[a], [b]]}", "data.extra: expected a key that shapes the tuned"),
    ("sts.epochs: 3", "sts.epochs: expected {low: …, high: …} or {choices: […]}, got 3"),
    ("sts.epochs: {low: 1}", "sts.epochs: expected {low: …, high: …} or {choices: […]}, got "),
    ("sts.epochs: {lo: 1, high: 2}", "with log or step, got 'lo'; did you mean low?"),
    ("sts.epochs: {low: 5, high: 2}", "sts.epochs: expected low below high, got 5.0 and 2.0"),
    ("sts.epochs: {low: 2, high: 2}", "sts.epochs: expected low below high, got 2.0 and 2.0"),
    ("sts.epochs: {low: 0, high: 2}", "sts.epochs: low: expected more than 0, got 0"),
    ("sts.epochs: {low: one, high: 2}", "sts.epochs: low: expected float, got 'one'"),
    ("sts.epochs: {low: 1, high: .inf}", "sts.epochs: high: expected more than 0, got inf"),
    ("sts.warmup_ratio: {low: 0, high: 1.5}", "sts.warmup_ratio: high: expected 1 or less, got "),
    ("sts.batch_size: {low: 16.0, high: 64}", "sts.batch_size: low: expected int, got 16.0"),
    ("sts.head: {low: 1, high: 2}", "sts.head: expected {choices: […]}, as it is no number"),
    ("simcse.drop_last: {low: 0, high: 1}", "simcse.drop_last: expected {choices: […]}, as it is"),
    ("sts.warmup_ratio: {low: 0, high: 0.5, log: true}", "expected low above 0 with log, got 0.0"),
    ("sts.epochs: {low: 1, high: 4, log: 1}", "log: expected true or false, got 1"),
    ("sts.epochs: {low: 1, high: 4, log: true, step: 1}", "expected log or step, got both"),
    ("sts.batch_size: {low: 16, high: 64, step: 0}", "step: expected int above 0"),
    ("sts.batch_size: {low: 16, high: 64, step: 1.5}", "step: expected int above 0"),
    ("sts.batch_size: {low: 16, high: 64, step: 32}", "expected whole steps from low to high"),
    ("sts.head: {choices: [cross]}", "choices: expected two or more different values"),
    ("sts.head: {choices: [cross, cross]}", "choices: expected two or more different values"),
    ("sts.head: {choices: cross}", "sts.head: expected {choices: […]} alone"),
    ("sts.head: {choices: [cross, bi], log: true}", "sts.head: expected {choices: […]} alone"),
    ("sts.head: {choices: [cross, both]}", "choices: expected one of cross, bi, got 'both'"),
    ("sts.loss: {choices: [mse, l1]}", "sts.loss: expected a range with the configured value "
                                       "'auto' in it (the first trial has it), got "),
    ("sts.learning_rate: {low: 1.0e-4, high: 1.0e-3}", "with the configured value 3e-05 in it"),
    ("sts.batch_size: {low: 8, high: 48, step: 20}", "with the configured value 32 in it"),
    ("- sts.epochs", "expected keys with ranges, got ['sts.epochs']"), ("", "expected keys with"),
    ("sts.epochs: {low: 1", "not valid YAML: ")])
def test_refused(tmp_path, text, message):
    """One line with the file, the key, what was expected and what was got."""
    with pytest.raises(UserError) as caught:
        read(tmp_path, text)
    line = str(caught.value)
    assert line.startswith(f"{tmp_path / 'space.yaml'}: ")
    assert message in line
    assert "\n" not in line


def test_no_file(tmp_path):
    """A file that is not there is named."""
    with pytest.raises(UserError, match=r"tune.space: expected a YAML file, got '.*none.yaml'"):
        read_space(tmp_path / "none.yaml", ["sts"], Config())


@pytest.mark.parametrize("stage", ["sts", "distill", "nli", "simcse"])
@pytest.mark.parametrize("preset", [name for name in presets() if name != "debug"])
def test_shipped(stage, preset):
    """The shipped spaces hold every preset's settings, vary their stage alone, explain each key."""
    path = SPACES / f"{stage}.yaml"
    space = read_space(path, [stage], load([f"preset={preset}", "data.dir=data"]))
    assert space
    assert {key.partition(".")[0] for key in space} == {stage}
    assert space.keys() <= KEYS.keys()
    for line in path.read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or "  # " in line
