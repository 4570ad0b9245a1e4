"""The section `jobs` of a settings file."""

import sys

import pytest

from stayfast.lab.simulated.settings import KINDS
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings

REST = "upstreams: {u: {kind: simulated}}\nroutes: {m: [u]}\n"


def read(text: str) -> Settings:
    return load_settings(SettingsText("j.yaml", REST + text), {}, kinds=KINDS)


@pytest.mark.parametrize("address", [
    "postgres://user:hush@host:5432/db", "postgresql://host/db?connections=4", "postgres:///db?host=/run/postgresql"])
def test_jobs_address_of_a_database_is_accepted_and_not_shown(address: str) -> None:
    settings = read(f'jobs: {{store: "{address}", wake: "redis://host:6379/1"}}\n')
    assert settings.jobs.store is not None
    assert settings.jobs.store.reveal() == address
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(("section", "where", "message"), [
    ('{store: "mysql://user:hush@host/db"}', "jobs.store", "must be like postgres://"),
    ('{store: "sqlite:///jobs.db"}', "jobs", "leave it out for the embedded store"),
    ('{store: "postgres://"}', "jobs", "must be like postgres://"),
    ('{wake: "http://host"}', "jobs.wake", "must be like redis://"),
    ('{windows: {n: "22:00-06:00"}}', "jobs.windows.n", "no route of this name"),
    ('{webhooks: [{url: "http://h/", secret: s, tenants: [nobody]}]}', "jobs.webhooks[0].tenants", 'no key named "nobody"'),
])
def test_jobs_bad_value_is_named_with_what_to_write(section: str, where: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(f"jobs: {section}\n")
    assert where in str(caught.value)
    assert message in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(("jobs", "where"), [("store: 'postgres://h/db'", "store"), ("wake: 'redis://h'", "wake")])
def test_jobs_store_without_package_is_refused(jobs: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says how to get it."""
    monkeypatch.setattr(sys.modules["stayfast.settings.consistency"], "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=rf"jobs\.{where}: needs a package .* pip install '\.\[(postgres|redis)\]'"):
        read(f"jobs: {{{jobs}}}\n")
