"""Seeded faults in the package, each of which a test must see."""
