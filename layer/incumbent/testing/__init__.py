"""What tests of handlers, of a provider, and of functions that use one, need.

For handlers: `lease` to hand to one, `run` to play a conversation to one, `stand_in` and the fixtures of
`incumbent.testing.pytest_plugin` to put a store under one. For providers: `incumbent.testing.conformance`, and
`incumbent.testing.servers` with real servers on this machine.

Nothing of the runtime imports this package, and importing it loads neither pytest nor a store's client.
"""

from incumbent.testing.clock import FakeClock
from incumbent.testing.conversation import After, Played, Run, run
from incumbent.testing.handlers import FakeContext, FakeLease, lease, stand_in

__all__ = ["After", "FakeClock", "FakeContext", "FakeLease", "Played", "Run", "lease", "run", "stand_in"]
