"""Ends a chain simcse, sts many times and compares the sum of the runs with an undisturbed one.

    python -m tests.faults.kills --runs 30               # kill -9 at random moments
    python -m tests.faults.kills --runs 30 --at writes   # kill -9 in the middle of writes
    python -m tests.faults.kills --runs 30 --at full     # a full disk at these writes, then space
    python -m tests.faults.kills --runs 30 --at denied   # no permission, then permission
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent))
import faults


def undisturbed(words: list[str], folder: Path) -> tuple[dict[str, str], float, int]:
    """The results of the chain left alone, its seconds, and its number of writes."""
    tally = folder.parent / "writes"
    tally.touch()
    child = faults.begun(words, folder, faults.at_write(0, faults.kill, tally))
    assert faults.ended(child) == 0, (folder / "said.txt").read_text()
    again, began = folder.with_name("again"), time.monotonic()
    judge(faults.ended(faults.begun(words, again)), again, right := faults.results(folder))
    return right, time.monotonic() - began, tally.stat().st_size


def by_time(words: list[str], folder: Path, right: dict[str, str], seconds: float, count: int,
            seed: int) -> Counter:
    """Kills at random moments; whenever a chain comes to its end, the next begins anew."""
    chance, tally, number = random.Random(seed), Counter(), 0
    while tally["killed"] < count or tally["unfinished"]:
        last = tally["killed"] >= count
        code = faults.killed(words, folder / f"chain{number}",
                             600 if last else chance.uniform(0, seconds))
        if code == -signal.SIGKILL:
            tally["killed"] += 1
            tally["unfinished"] = 1
            continue
        judge(code, folder / f"chain{number}", right)
        tally["chains"] += 1
        tally["unfinished"] = 0
        number += 1
    return tally


def at_writes(words: list[str], folder: Path, right: dict[str, str], writes: int, count: int,
              seed: int, kind: str) -> Counter:
    """A disturbance at some of the writes, then the same command undisturbed."""
    tally = Counter()
    action = {"writes": faults.kill, "full": faults.full, "denied": faults.denied}[kind]
    for number in faults.moments(seed, writes, count):
        where = folder / f"write{number}"
        code = faults.ended(faults.begun(words, where, faults.at_write(number, action)))
        said = (where / "said.txt").read_text(encoding="utf-8")
        if kind == "writes":
            assert code == -signal.SIGKILL, (number, code, said)
        elif code == 0:  # the log alone may fail without ending the command
            tally["unharmed"] += 1
        else:
            assert code == 2, (number, code, said)
            assert said.count("error: ") == 1, (number, said)
            assert "Traceback" not in said, (number, said)
        tally["disturbed"] += 1
        judge(faults.ended(faults.begun(words, where)), where, right)
    return tally


def judge(code: int, folder: Path, right: dict[str, str]) -> None:
    """The command is done, its files are the undisturbed one's, and nothing else is left."""
    assert code == 0, (folder / "said.txt").read_text(encoding="utf-8")
    found = faults.results(folder)
    wrong = [name for name in right.keys() | found.keys() if right.get(name) != found.get(name)]
    assert not wrong, (folder, wrong)
    assert not faults.leftovers(folder), (folder, faults.leftovers(folder))


def main() -> None:
    """Reads the command line, does it and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at", choices=["moments", "writes", "full", "denied"], default="moments")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = faults.prepare(folder)
        right, seconds, writes = undisturbed(words, folder / "undisturbed")
        print(f"undisturbed: {seconds:.1f} s, {writes} writes, {len(right)} files compared")
        if asked.at == "moments":
            tally = by_time(words, folder, right, seconds, asked.runs, asked.seed)
        else:
            tally = at_writes(words, folder, right, writes, asked.runs, asked.seed, asked.at)
        print(", ".join(f"{number} {what}" for what, number in tally.items() if number)
              + ": every chain's files equal the undisturbed one's, bit for bit")


if __name__ == "__main__":
    main()
