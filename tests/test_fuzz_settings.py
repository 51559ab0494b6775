"""Any words and any YAML: a configuration within its limits, or one UserError; nothing else.

python -m pytest tests/test_fuzz_settings.py
"""

import string
from dataclasses import fields, is_dataclass

import pytest
import yaml
from fuzz import examples, outcome
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline import layers
from pipeline.config import KEYS, Config
from pipeline.errors import UserError
from pipeline.layers import load

ODD = ["", "null", "~", "~/x", "true", "yes", "1e5", "1e400", "-0", "nan", ".inf", "1" * 5000,
       "1" * 400, "0x10", "1:30", "2024-13-45", "[1, 2", "[" * 1200, "{a: b}", "{[1]: 2}",
       "&a [*a]", "*a", "!!python/object:os.system x", "!!binary x", "!!int x", "!!set {a}",
       "${seed}", "${oc.env:HOME}", "${", "???", "\0", "\n", "\udcff", "../x", "/", "|", ">", "? a",
       "'", '"', "!!float a", "!!bool a", "!!timestamp a", "!!null a", "!!map a", "<<: 1",
       "{<<: 1}", "%x"]
names = st.sampled_from(sorted(KEYS))
values = st.one_of(st.sampled_from(ODD), st.text(max_size=12), st.integers().map(str),
                   st.floats().map(str))
words = st.one_of(st.tuples(names, values).map("=".join), st.text(max_size=12),
                  st.tuples(st.text(string.ascii_lowercase + "._", max_size=12), values,
                            ).map("=".join))


def right(config: Config) -> None:
    """Every value has its key's type and keeps its limits."""
    def walk(node, before: str) -> None:
        for item in fields(node):
            value = getattr(node, item.name)
            if is_dataclass(value):
                walk(value, f"{before}{item.name}.")
                continue
            default, limits = KEYS[before + item.name]
            assert type(value) is type(default), item.name
            if isinstance(value, list):
                assert all(type(part) is str for part in value)
            if "choices" in limits:
                assert value in limits["choices"]
            if "at_least" in limits:
                assert value >= limits["at_least"]
            if "above" in limits:
                assert value > limits["above"]
            if "at_most" in limits:
                assert value <= limits["at_most"]
            "".join(value if isinstance(value, list) else [str(value)]).encode()

    walk(config, "")


def tried(given_words: list[str]) -> None:
    """A right configuration, or an error that has words and no line break once it is said."""
    config, _ = outcome(load, given_words)
    if config is not None:
        right(config)


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """A folder of our own in place of configs/, with an empty preset."""
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "roberta-large.yaml").write_text("")
    (tmp_path / "presets" / "offline.yaml").write_text("")
    monkeypatch.setattr(layers, "CONFIGS", tmp_path)
    return tmp_path


@pytest.mark.parametrize("value", ODD)
def test_every_odd_value_of_a_key_of_each_type(configs, value):
    """Numbers, texts, lists, switches: one of each."""
    for name in ("seed", "sts.learning_rate", "encoder.path", "encoder.prefix", "chain", "force",
                 "device", "board.public", "data.extra", "trial", "preset"):
        tried([f"{name}={value}"])


@examples(200)
@given(st.lists(words, max_size=4))
def test_any_words(configs, some):
    """Of a command line."""
    tried(some)


leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(ODD),
                   st.text(max_size=8), st.dates())
nodes = st.recursive(leaves, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.dictionaries(st.one_of(
        st.sampled_from(sorted({part for name in KEYS for part in name.split(".")})), names,
        st.text(max_size=4), st.integers()), inner, max_size=3)), max_leaves=6)


def yaml_of(node: object) -> str:
    """The node as YAML, where YAML can hold it."""
    try:
        return yaml.safe_dump(node, allow_unicode=True)
    except UnicodeEncodeError:
        return "{}"


@examples(200)
@given(st.one_of(nodes.map(yaml_of), st.text(max_size=40), st.sampled_from(ODD)))
@example("sts: &a {x: *a}")
@example("nonsense: {}")
@example("seed: {}")
@example("sts:")
@example("a: &a {}\nb: *a")
def test_any_layer(configs, text):
    """Of base.yaml."""
    (configs / "base.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    tried([])


@examples(50)
@given(st.binary(max_size=60))
def test_any_bytes_of_a_layer(configs, content):
    """Not even text."""
    (configs / "base.yaml").write_bytes(content)
    tried([])


@pytest.mark.parametrize(("text", "message"), [
    ("nonsense: {}", "unknown key 'nonsense'"), ("seed: {}", "seed: expected int, got {}"),
    ("sts: {lr: {}}", "unknown key 'sts.lr'"), ("encoder: {path: '${seed}'}",
                                                "encoder.path: expected plain text on one line"),
    ("sts: [1]", "unknown key 'sts'"), ("sts: &a {x: *a}", "unknown key 'sts.x'")])
def test_nothing_of_a_layer_is_passed_over(configs, text, message):
    """Not even an empty section of no name."""
    (configs / "base.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        load([])
    assert f"base.yaml: {message}" in str(caught.value)


def test_a_section_without_keys_is_empty(configs):
    """As in base.yaml when only its header has lost its #."""
    (configs / "base.yaml").write_text("sts:\n#  epochs: 2\nseed: 5\n")
    assert load([]).seed == 5
