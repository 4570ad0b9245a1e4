"""Findings about the gateways of a fleet.

Problem: gateways are meant to be alike, and behave differently if one has old settings, another version, or a broken path to
an upstream. Each shows only itself. Rule: compare what all of them publish:

    settings   sections whose digest differs; the smaller group is named
    version    more than one
    breaker    open at one gateway only, by its own evidence, while at least two others use the same upstream without trouble

When wrong: settings that are meant to differ (another region) are reported, too; `server`, `workers` and `log` never are.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stayfast.core.findings import Evidence, Finding, FindingSite, SettingsChange

GATEWAYS = "/admin/gateways"
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


def find_differences(members: Sequence[FleetMember]) -> list[Finding]:
    """The most general first; empty if nothing is to be reported. At most one of settings and one of versions."""
    return [*_compare_settings(members), *_compare_versions(members), *_lonely_breakers(members)]


def _compare_settings(members: Sequence[FleetMember]) -> list[Finding]:
    names = sorted({name for member in members for name in member.sections})
    groups: dict[tuple[str, ...], list[str]] = {}
    for member in members:
        if member.sections:
            groups.setdefault(tuple(member.sections.get(name, "") for name in names), []).append(member.id)
    if len(groups) < 2:
        return []
    ranked = sorted(groups.items(), key=lambda group: (-len(group[1]), min(group[1])))
    (most, most_ids), others = ranked[0], ranked[1:]
    differences = "; ".join(
        f"{_list_names(ids)} {'has' if len(ids) == 1 else 'have'} other settings than {_list_names(most_ids)}: "
        + _list_names([name for name, one, other in zip(names, most, digests, strict=True) if one != other])
        for digests, ids in others)
    return [Finding(
        "fleet.settings_differ", "warn", FindingSite(), f"{differences}. Reload the one with the old file (SIGHUP).",
        "Gateways with the same fleet prefix share limits and breakers, so they should decide alike.",
        (Evidence("different settings", len(groups), "", None, GATEWAYS),
         Evidence("gateways", len(members), "", None, GATEWAYS)),
        (SettingsChange("The same file at all of them, then SIGHUP to each.", confidence="measured"),),
        f"findings of {GATEWAYS} is empty")]


def _compare_versions(members: Sequence[FleetMember]) -> list[Finding]:
    versions: dict[str, list[str]] = {}
    for member in members:
        versions.setdefault(member.version, []).append(member.id)
    if len(versions) < 2:
        return []
    listed = "; ".join(f"{version} at {_list_names(ids)}" for version, ids in sorted(versions.items()))
    return [Finding(
        "fleet.versions_differ", "info", FindingSite(), f"Versions differ: {listed}.",
        "An update has not reached all gateways, or is under way.",
        (Evidence("versions", len(versions), "", None, GATEWAYS),),
        (SettingsChange("The same version at all gateways.", confidence="measured"),), f"findings of {GATEWAYS} is empty")]


def _lonely_breakers(members: Sequence[FleetMember]) -> list[Finding]:
    found = []
    for member in members:
        for digest, name in member.opened.items():
            n_closed = sum(digest in other.closed for other in members if other is not member)
            is_lonely = not any(digest in other.opened for other in members if other is not member)
            if is_lonely and n_closed >= 2:
                found.append(Finding(
                    "fleet.lonely_breaker", "warn", FindingSite(upstream=name),
                    f"The breaker of {name} is open at {member.id} only; {n_closed} other gateways use it without "
                    "trouble. Check "
                    f"the network of {member.id}.",
                    "The upstream itself works, so the path from this one gateway to it does not.",
                    (Evidence("gateways that use it", n_closed, "", None, GATEWAYS),),
                    (SettingsChange(f"Names, routes and certificates at {member.id}: stayfast check --live there.",
                                    confidence="unknown"),), f"findings of {GATEWAYS} is empty"))
    return found


def _list_names(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:MAX_NAMED])
    return shown if len(names) <= MAX_NAMED else f"{shown} and {len(names) - MAX_NAMED} more"
