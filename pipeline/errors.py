"""The ends of a run that are no faults of the program, each shown as a single line."""

import signal
from pathlib import Path


class UserError(Exception):
    """Bad input (exit code 2): says the file, the row, what was expected and what was got."""


class NotFinite(Exception):
    """A loss or gradient that is no number (exit code 1): says the step and its sentences."""

    def __init__(self, words: str, folder: Path) -> None:
        super().__init__(words)
        self.folder = folder


class Pruned(Exception):
    """Ended at an evaluation by the function that watches a training (stage=tune)."""

    def __init__(self, folder: Path, step: int) -> None:
        super().__init__(f"pruned after step {step}")
        self.folder = folder


class OutOfMemory(Exception):
    """The allocator gave no more memory (exit code 1): says which keys to lower."""


class Stopped(Exception):
    """Stopped by a signal after saving (exit code 128 + signal): the same command resumes."""

    def __init__(self, number: int, step: int) -> None:
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        super().__init__(f"stopped by {name} after step {step}: the same command goes on from here")
        self.number = number


def nearest(word: str, names: list[str]) -> str:
    """`; did you mean X?` for the valid name closest to `word`, or nothing."""
    import difflib

    found = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""
