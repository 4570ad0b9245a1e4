"""The section `fleet` of a settings file."""

import pytest

from stayfast.compose.fleet import gateway_id
from stayfast.lab.simulated.settings import KINDS
from stayfast.policy.fleet.config import FleetConfig
from stayfast.settings import Secret, Settings, SettingsError, SettingsText, load_settings

REST = "upstreams: {u: {kind: simulated}}\nroutes: {m: [u]}\n"


def read(text: str, variables: dict[str, str] | None = None) -> Settings:
    return load_settings(SettingsText("f.yaml", REST + text), variables or {}, kinds=KINDS)


def test_fleet_unset_shares_nothing() -> None:
    assert read("").fleet == FleetConfig()
    assert FleetConfig().url is None


def test_fleet_complete_section_is_loaded() -> None:
    """A URL with a password comes by reference, and is not shown."""
    settings = read('fleet: {url: "${REDIS}", prefix: live, gateway: eu-1, heartbeat_s: 2, on_loss: closed, '
                    "expected_gateways: 4}\n", {"REDIS": "rediss://:hush@host:6379/3"})
    assert settings.fleet == FleetConfig(Secret("rediss://:hush@host:6379/3"), "live", "eu-1", 2.0, "closed", 4)
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(("section", "where", "message"), [
    ('{url: "http://host"}', "fleet.url", "must be like redis://"),
    ("{on_loss: maybe}", "fleet.on_loss", "local"),
    ("{prefix: a b}", "fleet.prefix", "letters, digits"),
    ("{expected_gateways: 0}", "fleet.expected_gateways", "from 1 to"),
])
def test_fleet_bad_value_is_named(section: str, where: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(f"fleet: {section}\n")
    assert where in str(caught.value)
    assert message in str(caught.value)


def test_gateway_id_is_its_name_and_its_start() -> None:
    assert gateway_id(FleetConfig(gateway="eu-1"), "b0") == "eu-1~b0"
    assert gateway_id(FleetConfig(), "b0").endswith("~b0")
