"""A small application, and local Lambdas that run it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from incumbent.local import LocalLambda

TEMPLATE = Path(__file__).parent / "app" / "template.yaml"
PARAMETERS = {"Secret": "s3cret"}

Start = Callable[..., LocalLambda]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start local Lambdas of the test's own, closed at its end."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(
            LocalLambda.from_template(TEMPLATE, parameters=PARAMETERS, **settings)
        )


@pytest.fixture(scope="package")
def cloud() -> Iterator[LocalLambda]:
    """A local Lambda that tests share, as far as they do not mind what the others did."""
    with LocalLambda.from_template(TEMPLATE, parameters=PARAMETERS, concurrency=8, retry_delays_ms=(20, 40)) as shared:
        yield shared
