"""Refusals of leases that do not work with Lambda's durable executions, without importing their SDK.

A durable handler is suspended by a ``BaseException`` that leaves it, and starts again from its first line when it
continues. A lease around it would be released at every wait. A lease inside one of its steps is held exactly as long as
the step runs.
"""

import sys
from collections.abc import Mapping

from incumbent.errors import ConfigurationError

_SDK = "aws_durable_execution_sdk_python"
_ADVICE = "put the lease inside a step: context.step(lambda _: reserve(order)), with @leased_function on reserve"


def refuse(name: str, event: object, context: object) -> None:
    """Refuse a lease around a durable handler, in either order of the two decorators."""
    if isinstance(event, dict) and "DurableExecutionArn" not in event and _SDK not in sys.modules:
        return
    if _is_of_the_sdk(context) and callable(getattr(context, "step", None)):
        raise ConfigurationError(
            f"{name}: @durable_execution stands above the lease, which would be released at every wait of the handler: "
            f"{_ADVICE}"
        )
    if _is_of_the_sdk(event) or (isinstance(event, Mapping) and {"DurableExecutionArn", "CheckpointToken"} <= {*event}):
        raise ConfigurationError(
            f"{name}: the lease stands above @durable_execution, whose event is good for one invocation only and "
            f"cannot be stored for another: {_ADVICE}"
        )


def suspended(name: str, error: BaseException) -> ConfigurationError | None:
    """Return the error of a run that its own wait or step would suspend inside the lease, if ``error`` says so."""
    if not any(each.__name__ == "SuspendExecution" and _is_sdk(each) for each in type(error).__mro__):
        return None
    return ConfigurationError(
        f"{name}: the durable execution waits inside the lease, which cannot be held meanwhile: wait outside the "
        f"lease, and {_ADVICE}"
    )


def _is_of_the_sdk(value: object) -> bool:
    return any(_is_sdk(each) for each in type(value).__mro__)


def _is_sdk(of: type) -> bool:
    return of.__module__.partition(".")[0] == _SDK
