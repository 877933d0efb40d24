"""The protocol under simulation: the real code, one seeded scheduler, a virtual clock, and faults.

A seed is a schedule: who invokes, when, what fails, who goes on next. Whatever happens in it can be had again::

    python -m tests.simulation --seed 4711 --trace
"""
