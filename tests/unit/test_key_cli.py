"""The command line of `stayfast key create`."""

from stayfast.cli.keys import parse


def test_key_create_without_a_name_has_the_default_name() -> None:
    """So the shortest command, `stayfast key create --tenant a`, works, and its repetition makes no second key."""
    assert parse(["create", "--tenant", "a"]).name == "default"
