"""stage=check: token ids as the tokenizer's own, and none of the imports that take seconds.

    python -m pytest tests/test_check.py
"""

import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
from transformers import ByT5Tokenizer

from pipeline.stages.check import whole_ids

ONE, OTHER = ["가나다 라마바", "영화 재미", "가"], ["사과를 먹었다", "정말 재미없는 영화", ""]
SLOW = ["scipy.stats", "sklearn", "datasets", "sympy", "torch._dynamo", "matplotlib",
        "transformers.modeling_utils"]
IMPORTED = """
import sys
import run
code = run.main(sys.argv[1:])
print("imported:", *sorted(set({names}) & set(sys.modules)))
sys.exit(code)
"""


@pytest.mark.parametrize("kind", ["as it is", "cutting", "without a fast one"])
def test_token_ids_are_the_tokenizers_own(tokenizer, kind):
    """Also where tokenizer.json says to cut and to pad, and of a tokenizer in plain Python."""
    one = ByT5Tokenizer() if kind == "without a fast one" else deepcopy(tokenizer)
    expected = one(ONE, OTHER)["input_ids"]
    if kind == "cutting":
        one.backend_tokenizer.enable_truncation(5)
        one.backend_tokenizer.enable_padding(length=40)
    assert whole_ids(one, ONE, OTHER) == expected
    assert min(map(len, expected)) <= 5 < max(map(len, expected))


def imported(names: list[str], *words: str) -> str:
    """Which of these modules a command of its own has imported in the end."""
    done = subprocess.run([sys.executable, "-c", IMPORTED.format(names=names), *words],
                          cwd=Path(__file__).parent.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_check_imports_nothing_slow(competition, make_encoder):
    """Together they take longer than everything else that it does."""
    words = ["stage=check", f"data.dir={competition}", f"encoder.path={make_encoder()}"]
    assert imported([*SLOW, "torch"], *words) == "imported: torch"


def test_help_imports_nothing_slow():
    """The list of keys comes at once."""
    assert imported([*SLOW, "torch", "pandas", "transformers", "yaml"], "help") == "imported: yaml"


def test_tokens_are_counted_with_the_prefix(command, competition, make_encoder):
    """As the encoder will read them: what the prefix pushes out is cut too."""
    words = ["stage=check", f"data.dir={competition}", f"encoder.path={make_encoder()}"]
    found = [int(re.search(r"median (\d+), 99%", command(*words, f"encoder.prefix={prefix}")[1])[1])
             for prefix in ("auto", "가나 다")]
    assert found[1] == found[0] + 2 * 3  # of one letter each
