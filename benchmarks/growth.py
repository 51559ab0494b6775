"""What grows with the work and what does not: time a row and peak memory, on synthetic text.

    python -m benchmarks.growth                      # a tiny random encoder
    python -m benchmarks.growth --encoder DIR --only simcse check

Each line is the real command in a process of its own; memory is that process's peak (RSS).
simcse: corpora of 10 k to 1 M sentences and a few steps each; reading and tokenising is all that
the command does but the steps. predict: pair files of 10 k to 1 M rows. diagnose: the report of a
run on a dev of 100 k pairs. uniformity: of random unit vectors. start: `run.py help`. check:
`stage=check` on a competition of the full size.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import command, table

TASKS = ("start", "check", "uniformity", "simcse", "predict", "diagnose")
COLUMNS = {"what": "", "rows": ",d", "seconds": ".2f", "processor": ".2f", "ms a row": ".3f",
           "GiB": ".2f", "steps: ms a sentence": ".3f"}
UNIFORMITY = """
import sys
import numpy as np
from pipeline.metrics import normalised, uniformity
n = int(sys.argv[1])
print(uniformity(normalised(np.random.default_rng(0).normal(size=(n, 384)).astype(np.float32))))
"""


def row(what: str, rows: int, found: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A row of the table from what a command took; a row's time is of processors."""
    found = {"what": what, "rows": rows, "seconds": found["seconds"],
             "processor": found["processor"], "ms a row": 1000 * found["processor"] / rows,
             "GiB": found["gib"], **more}
    print(found, file=sys.stderr)  # at once: the table comes at the end
    return found


def settings(folder: Path, encoder: str, steps: int) -> list[str]:
    """What every command of the pipeline is given."""
    return ["run.py", f"data.dir={folder / 'data'}", f"encoder.path={encoder}",
            "encoder.pooling=mean", "encoder.prefix=", f"runs_dir={folder / 'runs'}",
            f"submissions_dir={folder / 'submissions'}", "device=cpu",
            f"simcse.max_steps={steps}", f"simcse.eval_every={steps}",
            f"simcse.geometry_every={steps}", "sts.max_steps=2", "sts.eval_every=2",
            "sts.head=cross"]


def write(kind: str, path: Path, *sizes: int) -> None:
    """Has something synthetic made by another process: a child's peak is never below ours."""
    command(["-m", "benchmarks.synthetic", kind, str(path), *map(str, sizes)])


def simcse(words: list[str], folder: Path, sizes: list[int], threads: int) -> list[dict]:
    """A few steps on corpora of these sizes."""
    rows = []
    for n in sizes:
        file = folder / f"{n}.txt"
        write("sentences", file, n)
        found = command([*words, "stage=simcse", f"data.extra=[{file}]", f"name=n{n}"], threads)
        (history,) = (folder / "runs" / "simcse").glob(f"n{n}-*/history.jsonl")
        steps = [line for line in map(json.loads, history.read_text(encoding="utf-8").splitlines())
                 if "loss" in line]
        size = int(re.search(r"simcse: (\d+) sentences", found["output"])[1])
        rows.append(row("simcse", size, found, **{"steps: ms a sentence": 1000 * sum(
            line["seconds"] for line in steps) / (64 * len(steps))}))
        file.unlink()
    return rows


def predict(words: list[str], folder: Path, sizes: list[int], threads: int) -> list[dict]:
    """A finished run's scores of so many pairs."""
    command([*words, "stage=sts", "chain=[sts]", "name=growth"], threads)
    (run,) = (folder / "runs" / "sts").glob("growth-*")
    rows = []
    for n in sizes:
        file = folder / f"pairs{n}.csv"
        write("pairs", file, n)
        rows.append(row("predict", n, command(
            [*words, "stage=predict", f"run={run}", f"pairs={file}"], threads)))
        file.unlink()
    return rows


def diagnose(words: list[str], folder: Path, dev: int, threads: int) -> list[dict]:
    """The training of a run on so many dev pairs, which it scores three times, and its report."""
    write("competition", folder / "wide", 1000, dev, 1000)
    words = [*words, f"data.dir={folder / 'wide'}"]
    trained = command([*words, "stage=sts", "chain=[sts]", "name=wide"], threads)
    (run,) = (folder / "runs" / "sts").glob("wide-*")
    return [row("sts (dev)", dev, trained),
            row("diagnose", dev, command([*words, "stage=diagnose", f"run={run}"], threads))]


def main() -> None:
    """Makes the synthetic competition, runs what is asked and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--encoder", default="", help="a folder; empty: a tiny random one")
    parser.add_argument("--only", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--vectors", type=int, default=100_000, help="of uniformity")
    parser.add_argument("--pairs", nargs=3, type=int, default=[9324, 550, 1100],
                        help="of the competition: train, dev and test")
    parser.add_argument("--dev", type=int, default=100_000, help="pairs of diagnose's dev set")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder = asked.encoder or str(folder / "encoder")
        write("competition", folder / "data", *asked.pairs)
        write("encoder", folder / "encoder")
        words = settings(folder, encoder, asked.steps)
        work = {
            "start": lambda: [row("start (run.py help)", 1, command(["run.py", "help"]))],
            "check": lambda: [row("check", sum(asked.pairs),
                                  command([*words, "stage=check"], asked.threads))],
            "uniformity": lambda: [row("uniformity", asked.vectors, command(
                ["-c", UNIFORMITY, str(asked.vectors)], asked.threads))],
            "simcse": lambda: simcse(words, folder, asked.sizes, asked.threads),
            "predict": lambda: predict(words, folder, asked.sizes, asked.threads),
            "diagnose": lambda: diagnose(words, folder, asked.dev, asked.threads)}
        rows = []
        for task in asked.only:
            print(task, file=sys.stderr)
            rows += work[task]()
    print(table(f"Growth, {asked.threads} threads", COLUMNS, rows))


if __name__ == "__main__":
    main()
