"""The registry of findings."""

from stayfast.core.snapshot import Snapshot
from stayfast.policy.findings.registry import CHECKS, REPORTED, all_kinds


def test_ids_of_all_kinds_are_unique_and_have_a_theme() -> None:
    ids = [kind.id for kind in (*CHECKS, *REPORTED)]
    assert len(set(ids)) == len(ids)
    assert all(one.count(".") == 1 and one == one.lower() for one in ids)


def test_explained_ids_exist() -> None:
    assert {explained for kind in all_kinds().values() for explained in kind.explains} - set(all_kinds()) == set()


def test_causes_form_no_circle() -> None:
    """A chain of causes has a first one."""
    kinds = all_kinds()

    def reached(one: str, path: tuple[str, ...]) -> set[str]:
        assert one not in path, (*path, one)
        return {one}.union(*(reached(explained, (*path, one)) for explained in kinds[one].explains))

    for one in kinds:
        reached(one, ())


def test_reported_kinds_find_nothing_themselves() -> None:
    assert [finding for kind in REPORTED for finding in kind.find(Snapshot(0.0))] == []
