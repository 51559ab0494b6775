"""A search space: a YAML file with the keys that vary and their ranges, checked key by key.

    python run.py stage=tune tune.space=configs/spaces/sts.yaml

    sts.learning_rate: {low: 1.0e-5, high: 1.0e-4, log: true}  # log: every factor alike
    sts.batch_size: {low: 16, high: 64, step: 16}
    sts.loss: {choices: [mse, huber]}
"""

from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from pipeline.config import KEYS, Config
from pipeline.errors import UserError, nearest
from pipeline.layers import apply

FIELDS = {"low", "high", "log", "step", "choices"}
Space = dict[str, BaseDistribution]


def read_space(path: Path, sections: list[str], untuned: Config) -> Space:
    """The file's keys, each with its range; raises UserError with file, key, expected and got.

    sections are those whose keys shape the tuned stage's result. The untuned configuration, which
    is the first trial, has to lie in the space.
    """
    if not path.is_file():
        raise UserError(f"tune.space: expected a YAML file, got {str(path)!r}, which is none")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path}: expected keys with ranges, got {content!r}")
    space: Space = {}
    for name, words in content.items():
        check_key(path, str(name), sections)
        space[name] = distribution(f"{path}: {name}", name, words)
        now = OmegaConf.select(OmegaConf.structured(untuned), name)
        if not holds(space[name], now):
            raise UserError(f"{path}: {name}: expected a range with the configured value {now!r} "
                            f"in it (the first trial has it), got {words}; widen it or give "
                            f"{name} on the command line")
    return space


def check_key(path: Path, name: str, sections: list[str]) -> None:
    """Refuses a key that does not exist or cannot change the tuned stage's result."""
    wanted = [key for key in KEYS if key.partition(".")[0] in sections and "." in key]
    if name not in KEYS:
        raise UserError(f"{path}: unknown key {name!r}{nearest(name, wanted)}")
    if name not in wanted:
        raise UserError(f"{path}: {name}: expected a key that shapes the tuned stage "
                        f"({', '.join(f'{section}.*' for section in sections)}), got one that "
                        "does not")
    if isinstance(KEYS[name][0], list):
        raise UserError(f"{path}: {name}: expected a key with a single value, got a list's")


def distribution(where: str, name: str, words: Any) -> BaseDistribution:
    """A key's range from its words in the file."""
    example = "{low: …, high: …} or {choices: […]}"
    if not isinstance(words, dict):
        raise UserError(f"{where}: expected {example}, got {words!r}")
    for field in words:
        if field not in FIELDS:
            raise UserError(f"{where}: expected {example}, with log or step, got {field!r}"
                            f"{nearest(str(field), sorted(FIELDS))}")
    if "choices" in words:
        return choices(where, name, words)
    default = KEYS[name][0]
    if not {"low", "high"} <= words.keys():
        raise UserError(f"{where}: expected {example}, got {words}")
    if isinstance(default, bool) or not isinstance(default, int | float):
        raise UserError(f"{where}: expected {{choices: […]}}, as it is no number, got {words}")
    low, high = (valid(f"{where}: {field}: ", name, words[field]) for field in ("low", "high"))
    if low >= high:
        raise UserError(f"{where}: expected low below high, got {low} and {high}")
    return number_range(where, words, low, high)


def number_range(where: str, words: dict, low: float, high: float) -> BaseDistribution:
    """A range of whole numbers where low is one, else of numbers."""
    log, step = words.get("log", False), words.get("step")
    if not isinstance(log, bool):
        raise UserError(f"{where}: log: expected true or false, got {log!r}")
    if log and low <= 0:
        raise UserError(f"{where}: expected low above 0 with log, got {low}")
    if log and step is not None:
        raise UserError(f"{where}: expected log or step, got both")
    kind = type(low)
    if step is not None:
        if type(step) not in (kind, int) or not 0 < step <= high - low:
            raise UserError(f"{where}: step: expected {kind.__name__} above 0, at most high - low, "
                            f"got {step!r}")
        if abs((high - low) / step - round((high - low) / step)) > 1e-9:
            raise UserError(f"{where}: expected whole steps from low to high, got {step} from "
                            f"{low} to {high}")
    if kind is int:
        return IntDistribution(low, high, log=log, step=step or 1)
    return FloatDistribution(low, high, log=log, step=step)


def choices(where: str, name: str, words: dict) -> CategoricalDistribution:
    """The values that a key may take."""
    values = words["choices"]
    if words.keys() != {"choices"} or not isinstance(values, list):
        raise UserError(f"{where}: expected {{choices: […]}} alone, got {words}")
    values = [valid(f"{where}: choices: ", name, value) for value in values]
    if len(set(values)) < max(2, len(values)):
        raise UserError(f"{where}: choices: expected two or more different values, got {values}")
    return CategoricalDistribution(values)


def valid(where: str, name: str, value: Any) -> Any:
    """The value as its key's type, within the key's limits."""
    config = OmegaConf.structured(Config)
    try:
        apply(config, {name: value}, "")
    except UserError as error:
        raise UserError(where + str(error).removeprefix(f"{name}: ")) from None
    return OmegaConf.select(config, name)


def holds(found: BaseDistribution, value: Any) -> bool:
    """Whether the range has the value in it."""
    if isinstance(found, CategoricalDistribution):
        return value in found.choices
    steps = (value - found.low) / found.step if found.step else 0.0
    return found.low <= value <= found.high and abs(steps - round(steps)) < 1e-9


def described(found: BaseDistribution) -> str:
    """A range in a few words."""
    if isinstance(found, CategoricalDistribution):
        return "one of " + ", ".join(map(str, found.choices))
    step = f", step {found.step:g}" if found.step not in (None, 1) else ""
    return f"{found.low:g} to {found.high:g}{', log' * found.log}{step}"
