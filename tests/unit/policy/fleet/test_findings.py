"""What the operator is told about gateways that differ."""

from stayfast.policy.fleet.findings import FleetMember, find_differences

SAME = {"routes": "aa", "upstreams": "bb"}


def member(name: str, *, version: str = "1", sections: dict[str, str] | None = None, closed: str = "", opened: str = ""
           ) -> FleetMember:
    """A gateway whose breakers are named like their digests."""
    return FleetMember(name, version, sections or SAME, {one: one for one in closed}, {one: one for one in opened})


def test_equal_gateways_have_no_findings() -> None:
    assert find_differences([]) == []
    assert find_differences([member("a", closed="u"), member("b", closed="u"), member("c")]) == []


def test_other_settings_name_the_smaller_group_and_the_sections() -> None:
    [found] = find_differences([member("a"), member("b"), member("c", sections={"routes": "xx", "upstreams": "bb"})])
    assert found.id == "fleet.settings_differ"
    assert found.summary == "c has other settings than a, b: routes. Reload the one with the old file (SIGHUP)."


def test_several_groups_of_settings_are_one_finding() -> None:
    [found] = find_differences([member("a"), member("b", sections={"routes": "xx"}), member("c", sections={"routes": "yy"})])
    assert found.evidence[0].value == 3


def test_versions_that_differ_are_listed() -> None:
    [found] = find_differences([member("a"), member("b", version="2")])
    assert (found.id, found.summary) == ("fleet.versions_differ", "Versions differ: 1 at a; 2 at b.")


def test_breaker_open_at_one_gateway_only_names_its_network() -> None:
    alone = [member("a", opened="u"), member("b", closed="u"), member("c", closed="u")]
    (found,) = find_differences(alone)
    assert (found.id, found.where.upstream) == ("fleet.lonely_breaker", "u")
    assert found.summary.startswith("The breaker of u is open at a only; 2 other gateways use it without trouble.")
    assert find_differences(alone[:2]) == []
    assert find_differences([*alone, member("d", opened="u")]) == []
