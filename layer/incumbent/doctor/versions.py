"""Which versions of the stored format the records of a store have."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from incumbent.doctor.check import Check

_NAMED = 20  # keyspaces


def judge_versions(found: Mapping[tuple[int | None, str], int], *, known: int, of: str = "") -> Check:
    """Make the check of the format's versions. ``found`` counts records by version and keyspace.

    The version ``None`` is that of a record of another program. ``known`` is the version that this release writes, and
    ``of`` says how many records were looked at, if those were not all.
    """
    name = "format versions"
    by_version: defaultdict[int | None, Counter[str]] = defaultdict(Counter)
    for (version, keyspace), count in found.items():
        by_version[version][keyspace] += count
    if not by_version:
        return Check.ok(name, f"no record yet; this release writes version {known}{of}")
    in_order = sorted(by_version.items(), key=lambda each: each[0] or 0)
    said = "; ".join(f"{version or 'unknown'} in {_counted(keyspaces)}" for version, keyspaces in in_order) + of
    if any(version is not None and version > known for version in by_version):
        advice = (
            f"deploy the release that wrote them, or a newer one: this one knows version {known}, refuses later ones"
        )
        return Check.warning(name, said, f"{advice} and leaves them as they are")
    if set(by_version) != {known}:
        advice = f"another program wrote what is not version {known}: use a key_prefix that only this application has"
        return Check.warning(name, said, advice)
    return Check.ok(name, said)


def _counted(keyspaces: Counter[str]) -> str:
    named = [f"{name or 'no keyspace'} ({count:,})" for name, count in sorted(keyspaces.items())]
    return ", ".join(named[:_NAMED]) + (", ..." if len(named) > _NAMED else "")
