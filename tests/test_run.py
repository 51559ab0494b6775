"""The entry point itself: pipes, and what a run's log keeps.

python -m pytest tests/test_run.py
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_closed_pipe():
    """`python run.py help | head` ends without a word, though the list is longer than the pipe."""
    command = f"{sys.executable} {ROOT / 'run.py'} help | read line"
    done = subprocess.run(["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"], timeout=60,
                          capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.strip() in ("141", "0")  # 0: head read all before the pipe closed


def test_log_keeps_evaluations(competition, make_encoder, command):
    """What the screen says of a training, log.txt says too."""
    code, _, err = command(
        "stage=simcse", f"data.dir={competition}", f"encoder.path={make_encoder('bert')}",
        "encoder.max_length=32", "encoder.pooling=mean", "simcse.max_steps=2",
        "simcse.batch_size=8", "simcse.eval_every=1", "device=cpu", "precision=fp32")
    assert code == 0, err
    (log,) = Path("runs/simcse").glob("*/log.txt")
    text = log.read_text(encoding="utf-8")
    for words in ("step 0: dev spearman", "step 1 of 2: dev spearman", "step 2 of 2: dev"):
        assert words in text
