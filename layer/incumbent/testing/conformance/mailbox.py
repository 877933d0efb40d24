"""What every mailbox does (M1 to M9), part by part."""

from incumbent.testing.conformance.claiming import Claiming
from incumbent.testing.conformance.crowds import Crowds
from incumbent.testing.conformance.duplicates import Duplicates
from incumbent.testing.conformance.dying import Dying
from incumbent.testing.conformance.failing import Failing
from incumbent.testing.conformance.handing_over import HandingOver
from incumbent.testing.conformance.lease import LeaseConformance
from incumbent.testing.conformance.limits import Limits
from incumbent.testing.conformance.orphans import Orphans
from incumbent.testing.conformance.running import Running
from incumbent.testing.conformance.settling import Settling
from incumbent.testing.conformance.storing import Storing
from incumbent.testing.conformance.walks import Walks


class MailboxConformance(
    Walks,
    Crowds,
    Storing,
    HandingOver,
    Orphans,
    Running,
    Dying,
    Failing,
    Limits,
    Duplicates,
    Claiming,
    Settling,
    LeaseConformance,
):
    """Messages beside the lease, the lease's own tests included.

    They run from the last of these classes to the first: each begins with the stale owner.
    """
