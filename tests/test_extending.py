"""The pages of docs/ and the READMEs: their keys, stages and presets exist; the recipes work.

python -m pytest tests/test_extending.py
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toy import small

from pipeline.config import KEYS, SAMPLE
from pipeline.layers import load, presets
from pipeline.stages import STAGES

ROOT = SAMPLE.parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.ko.md", *sorted((ROOT / "docs").glob("*.md"))]
MADE = {"stage=sizes", "preset=my-bert", "sts.loss=log-cosh"}  # by the recipes
WORD = re.compile(r"(?<![\w./-])([a-z_]+(?:\.[a-z_]+)?)=([^\s`\",|]*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_key_of_a_page_exists(page):
    """Those written as key=value in code; values are tried where they are no place-holders."""
    code = re.findall(r"```bash\n(.*?)```|`([^`\n]+)`", page.read_text(encoding="utf-8"), re.S)
    for name, value in WORD.findall("\n".join(block or word for block, word in code)):
        if f"{name}={value}" in MADE:
            continue
        assert name in KEYS, f"{name}={value}"
        if name == "stage" and value not in ("STAGE", ""):
            assert value in STAGES, value
        elif name == "preset" and value not in ("NAME", "") and not value.endswith(".yaml"):
            assert value in presets(), value
        elif re.fullmatch(r"[\w.+-]+", value) and not re.fullmatch(r"[A-Z]+", value):
            load(["data.dir=x", f"{name}={value}"] if name != "data.dir" else [f"{name}={value}"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page):
    """Those to files of the project."""
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_twenty_problems():
    """In both languages, under the same numbers."""
    numbers = [re.findall(r"^\| (\d+) \|", (ROOT / "docs" / name).read_text(), re.M)
               for name in ("troubleshooting.md", "troubleshooting.ko.md")]
    assert numbers[0] == numbers[1] == [str(n) for n in range(1, len(numbers[0]) + 1)]
    assert len(numbers[0]) >= 20


@pytest.fixture
def copy(tmp_path) -> Path:
    """The project without its environment and data, changed as docs/extending.md says."""
    for name in ("pipeline", "configs", "data/sample"):
        shutil.copytree(ROOT / name, tmp_path / "copy" / name,
                        ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "run.py", tmp_path / "copy")
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    preset, loss, entry, choice, stage, line = re.findall(r"```\w+\n(.*?)```", page, re.S)
    folder = tmp_path / "copy"
    (folder / "configs/presets/my-bert.yaml").write_text(preset)
    insert(folder / "pipeline/losses.py", "REGRESSION = {", loss + "\n\n", before=True)
    insert(folder / "pipeline/losses.py", "REGRESSION = {\n", entry)
    replace(folder / "pipeline/sections.py",
            '                             "mse+cosent", "cosent+pearson"])\n', choice)
    (folder / "pipeline/stages/sizes.py").write_text(stage)
    insert(folder / "pipeline/stages/__init__.py", "STAGES = {\n", line)
    return folder


def test_both_languages_show_the_same_code():
    """docs/extending.md and its translation."""
    one, other = (re.findall(r"```.*?```", (ROOT / "docs" / name).read_text(encoding="utf-8"), re.S)
                  for name in ("extending.md", "extending.ko.md"))
    assert one == other
    assert len(one) == 6


def insert(path: Path, mark: str, text: str, before: bool = False) -> None:
    """Puts text before or after the mark."""
    replace(path, mark, text + mark if before else mark + text)


def replace(path: Path, old: str, new: str) -> None:
    """Puts new in the place of old, which stands there once."""
    content = path.read_text(encoding="utf-8")
    assert content.count(old) == 1, (path, old)
    path.write_text(content.replace(old, new), encoding="utf-8")


def test_the_recipes(copy, competition, make_encoder):
    """A preset, a loss and a stage added word by word are listed, refused or run as others are."""
    def said(*words: str) -> str:
        done = subprocess.run([sys.executable, "run.py", *words], cwd=copy, text=True, check=False,
                              capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = " ".join(said("help").split())
    for word in ("my-bert", "log-cosh", "sizes counts the pairs of each set"):
        assert word in listed
    assert said("stage=sizes", f"data.dir={competition}") == (
        "train: 48 pairs\ndev: 24 pairs\ntest: 16 pairs\n")
    out = said("stage=sts", "preset=my-bert", "sts.loss=log-cosh",
               *small(make_encoder(), "chain=[sts]", "sts.max_steps=2", data=competition))
    assert "cross head, log-cosh loss" in out
    assert "submission: submissions/my-bert-" in out
