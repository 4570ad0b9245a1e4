"""policy.admission.response_owners: a stored response belongs to the tenant that received it."""

from stayfast.policy.admission.response_owners import ResponseOwners


def test_response_owners_other_tenant_is_recognised() -> None:
    """The owner itself, and tenants of an unrecorded id, may continue."""
    owners = ResponseOwners()
    owners.record("resp_1", "a")
    assert owners.belongs_to_other("resp_1", "b")
    assert not owners.belongs_to_other("resp_1", "a")
    assert not owners.belongs_to_other("resp_2", "b")


def test_response_owners_shared_answer_is_open_to_all() -> None:
    """A response that two tenants received from a shared cache belongs to neither alone."""
    owners = ResponseOwners()
    owners.record("resp_1", "a")
    owners.record("resp_1", "b")
    owners.record("resp_1", "a")
    assert not any(owners.belongs_to_other("resp_1", tenant) for tenant in "abc")


def test_response_owners_share_memory_between_workers() -> None:
    """Two instances over the same words see each other's records; the words are allocated once, at the first use."""
    calls: list[dict[int, int]] = []
    words: dict[int, int] = {}

    class Words:
        def __getitem__(self, index: int) -> int:
            return words.get(index, 0)

        def __setitem__(self, index: int, value: int) -> None:
            words[index] = value

    def make() -> Words:
        calls.append(words)
        return Words()

    one, two = ResponseOwners(make), ResponseOwners(make)
    assert not calls
    one.record("resp_1", "a")
    one.record("resp_2", "a")
    assert two.belongs_to_other("resp_1", "b")
    assert len(calls) == 2
