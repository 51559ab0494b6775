"""What the property tests share: how many examples, and what came of a call."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

from pipeline.errors import UserError


def examples(count: int) -> settings:
    """So many examples, the same in every run, however long each takes."""
    return settings(max_examples=count, deadline=None, derandomize=True, database=None,
                    suppress_health_check=[HealthCheck.function_scoped_fixture])


def outcome(call: Callable, *arguments: Any) -> tuple[Any, str]:
    """What the call gave and "", or None and the words of its UserError; others go through."""
    try:
        return call(*arguments), ""
    except UserError as error:
        assert str(error).strip()  # noqa: PT017
        return None, str(error)
