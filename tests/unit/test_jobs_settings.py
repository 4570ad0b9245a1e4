"""The addresses of the stores of jobs in a settings file."""

import sys

import pytest

from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings

TEXT = "upstreams: {u: {kind: simulated}}\nroutes: {m: [u]}\n"


def read(jobs: str) -> Settings:
    """The settings with these of jobs."""
    return load_settings(SettingsText("f.yaml", f"{TEXT}jobs: {{{jobs}}}\n"), {}, kinds=KINDS)


@pytest.mark.parametrize(("jobs", "message"), [
    ("store: 'mysql://u:hush@h/db'", "f.yaml:3:15: jobs.store: the scheme must be postgres or postgresql"),
    ("store: 'postgres://u:hush@h:port/db'", "f.yaml:3:15: jobs.store: the port must be a number"),
    ("store: 'postgres://u:hush@[h/db'", "jobs.store: not a URL"),
    ("store: 'postgres://u:hush@h/db?connections=many'", "jobs.store: `connections` must be a number"),
    ("wake: 'http://:hush@h/'", "f.yaml:3:14: jobs.wake: must be like redis://"),
    ("wake: 'hush'", "jobs.wake: must be like redis://")])
def test_jobs_wrong_address_is_refused_with_its_place(jobs: str, message: str) -> None:
    """And without the secret."""
    with pytest.raises(SettingsError) as refused:
        read(jobs)
    assert message in str(refused.value)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("store", ["postgres://u:p@h/db", "postgresql://h1:5432,h2:5433/db?pooler=transaction"])
def test_jobs_right_addresses_are_accepted(store: str) -> None:
    settings = read(f"store: '{store}', wake: 'rediss://:p@h:6379/2'")
    assert settings.jobs.store is not None
    assert settings.jobs.store.reveal() == store


@pytest.mark.parametrize(("jobs", "where"), [("store: 'postgres://h/db'", "store"), ("wake: 'redis://h'", "wake")])
def test_jobs_store_without_package_is_refused(jobs: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says how to get it."""
    monkeypatch.setattr(sys.modules["stayfast.settings.consistency"], "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=rf"jobs\.{where}: needs a package .* pip install '\.\[(postgres|redis)\]'"):
        read(jobs)
