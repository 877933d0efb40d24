"""What is taken for a durable execution, without its SDK: `tests/functions/test_durable.py` has it."""

from types import SimpleNamespace

import pytest

from incumbent import ConfigurationError
from incumbent.durable import refuse


def test_context_of_another_kind_with_steps_is_not_a_durable_one() -> None:
    """A mock has every method."""
    refuse("handler", ["an event that is not an object"], SimpleNamespace(step=print))


def test_event_of_a_durable_execution_is_refused() -> None:
    """By the two fields that only Lambda writes."""
    with pytest.raises(ConfigurationError, match="put the lease inside a step"):
        refuse("handler", {"DurableExecutionArn": "arn", "CheckpointToken": "t"}, None)
    refuse("handler", {"DurableExecutionArn": "arn"}, None)
