"""The tree of errors, and what each carries."""

import inspect
import re

import pytest

from incumbent import errors
from incumbent.errors import ConfigurationError, IncumbentError, LeaseLost, LeaseUnavailable, RetryLater

ALL = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, Exception)]


@pytest.mark.parametrize("error", ALL)
def test_every_error_is_of_the_tree_and_drawn_in_it(error: type[Exception]) -> None:
    """One except clause catches all, and the docstring of the module shows each."""
    assert issubclass(error, IncumbentError)
    assert errors.__doc__ is not None
    assert re.search(rf"(^ +|── ){error.__name__}\b", errors.__doc__, re.MULTILINE)


def test_error_keeps_its_key_beside_the_message() -> None:
    """Data are attributes, never text to be parsed."""
    # H50: Powertools #6308: the message hides which key was meant.
    error = LeaseUnavailable("no answer", key="thread-1")
    assert (str(error), error.key) == ("no answer", "thread-1")
    assert ConfigurationError("no key yet").key is None


def test_lost_lease_says_who_lost_it_and_who_holds_it() -> None:
    """As far as the store said so."""
    error = LeaseLost("lost", key="thread-1", owner="A", holder="B")
    assert (error.key, error.owner, error.holder) == ("thread-1", "A", "B")
    assert LeaseLost("lost").holder is None


@pytest.mark.parametrize("after_ms", [0, 1, 86_400_000])
def test_retry_later_takes_a_pause_of_a_day_at_most(after_ms: int) -> None:
    """M6: 0 is a pause too: at once."""
    error = RetryLater(after_ms, "the model is busy")
    assert error.after_ms == after_ms
    assert "the model is busy" in str(error)
    assert "asked for" in str(RetryLater(after_ms))


@pytest.mark.parametrize("after_ms", [-1, 86_400_001, 0.5, 1.0, True, "5", None, float("nan")])
def test_retry_later_refuses_another_pause(after_ms: object) -> None:
    """R10: whole milliseconds; refused where it is raised, not when it is settled."""
    with pytest.raises(ConfigurationError):
        RetryLater(after_ms)  # type: ignore[arg-type]
