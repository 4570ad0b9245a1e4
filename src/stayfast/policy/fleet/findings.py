"""Findings about the gateways of a fleet, as sentences for the operator.

Problem: gateways are meant to be alike, and behave differently if one has old settings, another version, or a broken path to
an upstream. Each shows only itself. Rule: compare what all of them publish:

    settings   sections whose digest differs; the smaller group is named
    version    more than one
    breaker    open at one gateway only, by its own evidence, while at least two others use the same upstream without trouble

When wrong: settings that are meant to differ (another region) are reported, too; `server`, `workers` and `log` never are.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

MAX_NAMED = 8  # gateways or sections in one sentence


class FleetMember(NamedTuple):
    """One gateway. `sections`: digests of the sections of its settings. `closed`, `opened`: its breakers with traffic, and
    the ones that are open by its own evidence, by upstream digest; with a readable name.
    """

    id: str
    version: str
    sections: Mapping[str, str]
    closed: Mapping[str, str]
    opened: Mapping[str, str]


def find_differences(members: Sequence[FleetMember]) -> list[str]:
    """Sentences, the most general first; empty if nothing is to be reported."""
    return [*_compare_settings(members), *_compare_versions(members), *_lonely_breakers(members)]


def _compare_settings(members: Sequence[FleetMember]) -> list[str]:
    names = sorted({name for member in members for name in member.sections})
    groups: dict[tuple[str, ...], list[str]] = {}
    for member in members:
        if member.sections:
            groups.setdefault(tuple(member.sections.get(name, "") for name in names), []).append(member.id)
    if len(groups) < 2:
        return []
    ranked = sorted(groups.items(), key=lambda group: (-len(group[1]), min(group[1])))
    (most, most_ids), others = ranked[0], ranked[1:]
    return [f"{_list_names(ids)} {'has' if len(ids) == 1 else 'have'} other settings than {_list_names(most_ids)}: "
            + _list_names([name for name, one, other in zip(names, most, digests, strict=True) if one != other])
            + ". Reload the one with the old file (SIGHUP)." for digests, ids in others]


def _compare_versions(members: Sequence[FleetMember]) -> list[str]:
    versions: dict[str, list[str]] = {}
    for member in members:
        versions.setdefault(member.version, []).append(member.id)
    if len(versions) < 2:
        return []
    return ["Versions differ: " + "; ".join(f"{version} at {_list_names(ids)}" for version, ids in sorted(versions.items()))
            + "."]


def _lonely_breakers(members: Sequence[FleetMember]) -> list[str]:
    found = []
    for member in members:
        for digest, name in member.opened.items():
            n_closed = sum(digest in other.closed for other in members if other is not member)
            is_lonely = not any(digest in other.opened for other in members if other is not member)
            if is_lonely and n_closed >= 2:
                found.append(f"The breaker of {name} is open at {member.id} only; {n_closed} other gateways use it without "
                             f"trouble. Check the network of {member.id}.")
    return found


def _list_names(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:MAX_NAMED])
    return shown if len(names) <= MAX_NAMED else f"{shown} and {len(names) - MAX_NAMED} more"
