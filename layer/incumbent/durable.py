"""Where a lease does not go with Lambda's durable executions: refused by name, without importing their SDK.

A durable handler is suspended by a ``BaseException`` that leaves it, and starts anew from its first line when it goes
on. A lease around it would be given up at every wait. A lease inside one of its steps is held for as long as the step
runs, and not a moment longer.
"""

from collections.abc import Mapping

from incumbent.errors import ConfigurationError
from incumbent.lease import Lease
from incumbent.runs import Work
from incumbent.values import Message

_SDK = "aws_durable_execution_sdk_python"
_ADVICE = "put the lease inside of a step: context.step(lambda _: reserve(order)), with @leased_function on reserve"


def refuse(name: str, event: object, context: object) -> None:
    """Refuse a lease around a durable handler, whichever of the two decorators stands above."""
    if _is_of_the_sdk(context) and callable(getattr(context, "step", None)):
        raise ConfigurationError(
            f"{name}: @durable_execution stands above the lease, which would be given up at every wait of the handler: "
            f"{_ADVICE}"
        )
    if _is_of_the_sdk(event) or (isinstance(event, Mapping) and {"DurableExecutionArn", "CheckpointToken"} <= {*event}):
        raise ConfigurationError(
            f"{name}: the lease stands above @durable_execution, whose event is good for one invocation only and "
            f"cannot be stored for another: {_ADVICE}"
        )


def held_to_the_end(name: str, work: Work) -> Work:
    """Work that fails when it would be suspended: by a wait, or by a step of its own, inside of the lease."""

    def run(message: Message, lease: Lease) -> object:
        try:
            return work(message, lease)
        except BaseException as error:
            if any(each.__name__ == "SuspendExecution" and _is_sdk(each) for each in type(error).__mro__):
                raise ConfigurationError(
                    f"{name}: the durable execution waits inside of the lease, which cannot be held meanwhile: wait "
                    f"outside of it, and {_ADVICE}"
                ) from error
            raise

    return run


def _is_of_the_sdk(value: object) -> bool:
    return any(_is_sdk(each) for each in type(value).__mro__)


def _is_sdk(of: type) -> bool:
    return of.__module__.partition(".")[0] == _SDK
