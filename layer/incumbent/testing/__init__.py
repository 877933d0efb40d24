"""What tests of a provider, and of functions that use one, need: real servers on this machine.

Nothing of the runtime imports this package. `incumbent.testing.servers` starts the servers.
"""
