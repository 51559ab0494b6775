"""What the tests of bad input share: how a refusal looks, and that it leaves nothing behind."""

import csv
from collections.abc import Callable
from pathlib import Path

Edit = Callable[[Path], object]


def refusal(result: tuple[int, str, str]) -> str:
    """The one line of a refused command: exit code 2, nothing else on stderr, no traceback."""
    code, out, err = result
    assert code == 2, out + err
    assert err.startswith("error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert "Traceback" not in out
    return err.removeprefix("error: ").removesuffix("\n")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below the folder with its content, hidden ones included."""
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*") if path.is_file()}


def unfinished(folder: Path) -> list[str]:
    """What must not be left by a command that failed: models, submissions, temporary files."""
    return [path.relative_to(folder).as_posix() for pattern in
            ("runs/*/*/model", "runs/*/*/predictions", "runs/*/*/metrics.json",
             "submissions/*.csv", "**/*.tmp") for path in folder.glob(pattern)]


def read_rows(path: Path) -> list[list[str]]:
    """A CSV's cells; the header is row 1 and has index 0."""
    return list(csv.reader(path.read_text(encoding="utf-8").splitlines()))


def write_rows(path: Path, rows: list[list[str]], mark: str = ",") -> None:
    """Writes cells, quoted where they need it."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=mark, lineterminator="\n").writerows(rows)


def cell(row: int, column: str, text: str) -> Edit:
    """An edit: puts text into a cell."""
    def edit(path: Path) -> None:
        rows = read_rows(path)
        rows[row - 1][rows[0].index(column)] = text
        write_rows(path, rows)

    return edit


def line(row: int, text: str) -> Edit:
    """An edit: replaces a line of the file as it stands there."""
    def edit(path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()
        lines[row - 1] = text
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    return edit


def separated(mark: str) -> Edit:
    """An edit: another separator, as a program that writes it would."""
    return lambda path: write_rows(path, read_rows(path), mark)


def without(column: str) -> Edit:
    """An edit: takes a column away."""
    def edit(path: Path) -> None:
        rows = read_rows(path)
        place = rows[0].index(column)
        write_rows(path, [row[:place] + row[place + 1:] for row in rows])

    return edit


def content(data: bytes) -> Edit:
    """An edit: other bytes in place of the file."""
    return lambda path: path.write_bytes(data)


def recoded(encoding: str) -> Edit:
    """An edit: the same text in another encoding; signs that it lacks are spelt out."""
    return lambda path: path.write_bytes(
        path.read_text(encoding="utf-8").encode(encoding, "xmlcharrefreplace"))
