"""A command line and YAML files turned into a configuration, every fault in one line.

A setting is taken from the last of these layers that names it: the dataclasses' defaults,
`configs/base.yaml`, the preset's file, `key=value` on the command line.
"""

import os
import re
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config import KEYS, SAMPLE, Config
from pipeline.errors import UserError, nearest
from pipeline.sections import Data
from pipeline.stages import STAGES, TRAINING

CONFIGS = SAMPLE.parent.parent / "configs"
# What the YAML parser raises: 2024-13-45 looks like a date, a thousand brackets are too deep,
# {[1]: 2} has a key that cannot be one.
NOT_YAML = (yaml.YAMLError, ValueError, RecursionError, TypeError, AttributeError, KeyError,
            IndexError)


def presets() -> list[str]:
    """The names that `preset=` takes."""
    return sorted(path.stem for path in (CONFIGS / "presets").glob("*.yaml"))


def preset_path(preset: str) -> Path:
    """The file of a preset: its name in configs/presets, or a path that ends in .yaml."""
    if str(preset).endswith(".yaml"):
        if not Path(preset).is_file():
            raise UserError(f"preset: expected a file, got {preset!r}, which is none")
        return Path(preset)
    if preset not in presets():
        raise UserError(f"preset: expected one of {', '.join(presets())}, got {preset!r}"
                        f"{nearest(str(preset), presets())}")
    return CONFIGS / "presets" / f"{preset}.yaml"


def parse(word: str) -> tuple[str, Any]:
    """`key=value` of the command line as a key and a value of the key's type."""
    name, equals, text = word.partition("=")
    if not equals:
        raise UserError(f"argument {word!r}: expected key=value{meant(word)}")
    if name not in KEYS:
        raise UserError(f"unknown key {name!r}{nearest(name, list(KEYS))} "
                        "(python run.py help lists them)")
    if isinstance(KEYS[name][0], str):
        return name, text
    if isinstance(KEYS[name][0], list):
        inside = text.strip().removeprefix("[").removesuffix("]")
        return name, [part.strip().strip("'\"") for part in inside.split(",") if part.strip()]
    try:
        return name, yaml.safe_load(text)
    except NOT_YAML:
        return name, text


def meant(word: str) -> str:
    """What a word without `=` may stand for: a preset, a key before a space, a misspelt key."""
    if word in presets():
        return f"; did you mean preset={word}?"
    if word in KEYS:
        return f", such as {word}=VALUE, without spaces around ="
    return nearest(word, list(KEYS))


def read_layer(path: Path) -> dict[str, Any]:
    """A YAML file's settings as dotted keys."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except NOT_YAML as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    flat: dict[str, Any] = {}

    def walk(node: Any, before: str) -> None:
        for part, value in node.items():
            name = before + str(part)
            if name in KEYS:
                flat[name] = value
            elif isinstance(value, dict | None) and any(key.startswith(f"{name}.") for key in KEYS):
                walk(value or {}, f"{name}.")  # a section whose keys are all commented out is None
            else:
                raise UserError(f"{path}: unknown key {name!r}{nearest(name, list(KEYS))}")

    if content is not None and not isinstance(content, dict):
        raise UserError(f"{path}: expected keys with values, got {type(content).__name__}")
    walk(content or {}, "")
    return flat


def apply(config: DictConfig, layer: dict[str, Any], source: str) -> None:
    """Sets the layer's keys, each checked against its type and limits."""
    for name, value in layer.items():
        default, limits = KEYS[name]
        wanted = type(default).__name__
        wrong = UserError(f"{source}{name}: expected {wanted}, got {value!r}")
        # YAML 1.1 reads 1e-5 as text and OmegaConf takes true for 1: both are settled here.
        if isinstance(default, float) and isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise wrong from None
        if isinstance(value, bool) != isinstance(default, bool) or value is None:
            raise wrong
        if isinstance(default, str) != isinstance(value, str):
            raise wrong
        parts = value if isinstance(value, list) else [value]
        if isinstance(default, list) and any(isinstance(part, dict | list | None)
                                             for part in parts):
            raise wrong
        if odd := [part for part in parts if isinstance(part, str) and not is_plain(part)]:
            raise UserError(f"{source}{name}: expected plain text on one line, got {odd[0]!r}")
        if limits.get("is_path"):
            parts = [os.path.expanduser(str(part)) for part in parts]
            value = parts if isinstance(value, list) else parts[0]
        try:
            OmegaConf.update(config, name, value)
        except (OmegaConfBaseException, OverflowError):  # a whole number of 400 digits is no float
            raise wrong from None
        check_limits(f"{source}{name}", value, limits)


def is_plain(text: str) -> bool:
    """Whether the text has neither controls, nor bytes that are not UTF-8, nor OmegaConf's signs.

    Those would be replaced by other keys' values or by what the environment holds.
    """
    return not (re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", text) or "${" in text
                or text == "???")


def check_limits(name: str, value: Any, limits: dict) -> None:
    """Raises UserError when a value is outside its key's limits."""
    choices = limits.get("choices")
    if choices and value not in choices:
        raise UserError(f"{name}: expected one of {', '.join(choices)}, got {value!r}"
                        f"{nearest(str(value), choices)}")
    if "at_least" in limits and not limits["at_least"] <= value < float("inf"):
        raise UserError(f"{name}: expected {limits['at_least']} or more, got {value}")
    if "above" in limits and not limits["above"] < value < float("inf"):
        raise UserError(f"{name}: expected more than {limits['above']}, got {value}")
    if "at_most" in limits and not value <= limits["at_most"]:
        raise UserError(f"{name}: expected {limits['at_most']} or less, got {value}")


def load(words: list[str]) -> Config:
    """The configuration that the command line asks for, layers and trial mode resolved."""
    given = dict(parse(word) for word in words)
    base = read_layer(CONFIGS / "base.yaml") if (CONFIGS / "base.yaml").exists() else {}
    preset = (base | given).get("preset", "")
    path, layer = layer_of(preset)
    asked = base | layer | given
    is_trial = wants_trial(asked)
    if not preset and "encoder.path" not in asked:
        preset = "offline" if is_trial else "roberta-large"
        path, layer = layer_of(preset)
    config = OmegaConf.structured(Config)
    apply(config, base, f"{CONFIGS / 'base.yaml'}: ")
    apply(config, layer, f"{path}: ")
    apply(config, given, "")
    resolved: Config = OmegaConf.to_object(config)
    resolved.preset = preset
    resolved.trial = "always" if is_trial else "never"
    if is_trial:
        resolved.data.dir = os.path.relpath(SAMPLE)
    if resolved.force and resolved.stage in set(STAGES) - {"help", *TRAINING}:
        raise UserError(f"force: expected false with stage={resolved.stage}, got true; it makes "
                        f"{', '.join(TRAINING)} train anew, one of which has to be the stage")
    resolved.name = resolved.name or own_name(resolved)
    return resolved


def layer_of(preset: str) -> tuple[Path | None, dict[str, Any]]:
    """A preset's file and settings; none of both for no preset."""
    if not preset:
        return None, {}
    path = preset_path(preset)
    layer = read_layer(path)
    if "preset" in layer:
        raise UserError(f"{path}: expected no preset in a preset, got {layer['preset']!r}")
    return path, layer


def own_name(config: Config) -> str:
    """The name of what a command makes: the runs' that it looks at, the preset's, the encoder's."""
    if runs := [path for path in [config.run, *config.runs] if path]:
        names = [Path(path).name for path in runs]  # NAME-IDENTITY
        own = "-and-".join(dict.fromkeys(name.rpartition("-")[0] or name for name in names))
        return re.sub(r"[^\w.-]+", "-", own).strip("-.")[:80]
    own = config.preset or Path(config.encoder.path).resolve().name
    if own.endswith(".yaml"):  # a preset by its path
        own = Path(own).stem
    own = re.sub(r"[^\w.-]+", "-", own).strip("-.")
    return f"trial-{own}" if config.trial == "always" else own


def wants_trial(asked: dict[str, Any]) -> bool:
    """Whether the run is a trial: on the sample, because there are no CSVs of the user's."""
    if asked.get("trial", "auto") == "auto":
        folder = Path(Data().dir)
        return "data.dir" not in asked and not any(folder.glob("*.csv"))
    if asked["trial"] == "always" and "data.dir" in asked:
        raise UserError("trial=always runs on data/sample: leave out data.dir")
    return asked["trial"] == "always"
