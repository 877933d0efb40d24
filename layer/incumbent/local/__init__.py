"""Runs the functions of a SAM template on this machine, as Lambda would: real processes, no cloud.

For development and tests; nothing that runs on Lambda imports it. It needs ``incumbent[local]``.
"""

from incumbent.local.environment import Environment
from incumbent.local.invocations import Cloud, Invocation, LogLine, Outcome, Pending
from incumbent.local.service import LocalLambda
from incumbent.local.template import FunctionSpec, Template

__all__ = [
    "Cloud",
    "Environment",
    "FunctionSpec",
    "Invocation",
    "LocalLambda",
    "LogLine",
    "Outcome",
    "Pending",
    "Template",
]
