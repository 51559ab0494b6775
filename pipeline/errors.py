"""The one exception that means "the user can mend this": shown as a single line, exit code 2."""


class UserError(Exception):
    """Bad input: says the file, the row, what was expected and what was got, in one line."""


def nearest(word: str, names: list[str]) -> str:
    """`; did you mean X?` for the valid name closest to `word`, or nothing."""
    import difflib

    found = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""
