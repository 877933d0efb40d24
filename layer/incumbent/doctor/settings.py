"""The settings of the environment, as far as they can be judged without a request."""

from collections.abc import Iterator, Mapping
from typing import Any

from incumbent.backends import check_waits
from incumbent.doctor.check import Check
from incumbent.errors import ConfigurationError
from incumbent.policies import policy_in_force
from incumbent.settings import Settings
from incumbent.validation import flag

_DEFAULT_TTL_MS = Settings().ttl_ms
FIRST_RETRY_MS = 60_000  # of an asynchronous invocation that failed


def ttl_of(environ: Mapping[str, str]) -> int:
    """Return the ttl that the environment sets; the default where it sets none, or one that cannot be read."""
    try:
        return _timings(environ).ttl_ms
    except ConfigurationError:
        return _DEFAULT_TTL_MS


def check_settings(environ: Mapping[str, str], provider: Any = None) -> Iterator[Check]:
    """Check the timings (also against the waits of the provider's client), the policy, and the emergency switch."""
    try:
        timings = _timings(environ)
        if provider is not None:
            check_waits(provider, timings.ttl_ms)
    except ConfigurationError as error:
        yield Check.failed("timings", str(error), "correct INCUMBENT_TTL_MS, INCUMBENT_RENEW_EVERY_MS or the client")
    else:
        found = f"ttl {timings.ttl_ms:,} ms, renewed every {timings.beat_ms:,} ms"
        if timings.ttl_ms > FIRST_RETRY_MS:
            advice = "Lambda's first retry of a killed invocation comes after 60 s and finds the key taken: shorten it"
            yield Check.warning("timings", found, advice)
        else:
            yield Check.ok("timings", found)
    try:
        policy_in_force(None, environ=environ)
    except ConfigurationError as error:
        yield Check.failed("policy", str(error), "correct INCUMBENT_POLICY")
    try:
        disabled = flag(environ, "INCUMBENT_DISABLED")
    except ConfigurationError as error:
        yield Check.failed("switch", str(error), "correct INCUMBENT_DISABLED")
    else:
        if disabled:
            found, advice = "INCUMBENT_DISABLED is set: no event is leased", "remove it once the emergency is over"
            yield Check.warning("switch", found, advice)


def _timings(environ: Mapping[str, str]) -> Settings:
    given: dict[str, Any] = {}
    for name, variable in (("ttl_ms", "INCUMBENT_TTL_MS"), ("renew_every_ms", "INCUMBENT_RENEW_EVERY_MS")):
        if text := environ.get(variable):
            try:
                given[name] = int(text)
            except ValueError as cause:
                raise ConfigurationError(f"{variable} is {text!r}: give whole milliseconds") from cause
    return Settings(**given)
