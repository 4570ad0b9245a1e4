"""The table of list prices: which upstreams it prices, and what takes precedence."""

from datetime import date, timedelta
from pathlib import Path

import pytest

from stayfast.cli import main
from stayfast.compose.prices import list_price_age_days, price_lines
from stayfast.policy.admission.price import ListPrice, Price
from stayfast.settings import Settings, SettingsError, SettingsText, load_settings
from stayfast.settings.price_table import all_rows, find_row, list_prices, list_prices_at, read_price_table

MODEL = "gpt-4o-mini"
CHECKED = read_price_table().providers["openai"].checked


def settings(upstream: str, more: str = "", model: str = MODEL) -> Settings:
    routes = f"routes: {{chat: {{upstreams: [up], model: {model}}}}}\n"
    text = f"upstreams: {{up: {{kind: openai, key: none, {upstream}}}}}\n{routes}{more}"
    return load_settings(SettingsText("test", text), {})


def test_list_price_applies_at_the_provider_itself_only() -> None:
    """A proxy or an engine with the same model name has no price."""
    assert isinstance(settings("").prices_for("up")[MODEL], ListPrice)
    for url in ("http://127.0.0.1:8000/v1", "https://eu.api.openai.com/v1", "https://api.openai.com.example.com/v1",
                "https://mine.openai.azure.com/openai/v1"):
        assert settings(f'base_url: "{url}"').prices_for("up") == {}


def test_list_price_needs_the_exact_name() -> None:
    """No prefix: a new snapshot may cost more."""
    prices = settings("").prices_for("up")
    assert f"{MODEL}-2024-07-18" in prices
    assert not {f"{MODEL}-2031-01-01", "gpt-4o-mini-new", "gpt", "ft:gpt-4o-mini"} & set(prices)


def test_own_price_takes_precedence() -> None:
    """By model, or for all models; `price_table: false` leaves own prices alone."""
    own = settings(f"prices: {{{MODEL}: {{input_per_mtok: 7}}}}").prices_for("up")
    assert (own[MODEL], type(own["gpt-4o"])) == (Price(7.0), ListPrice)
    assert set(settings('prices: {"*": {input_per_mtok: 7}}').prices_for("up")) == {"*"}
    assert settings("", "price_table: false\n").prices_for("up") == {}


def test_price_of_a_named_row_applies_anywhere() -> None:
    """For deployments with names of one's own."""
    made = settings('base_url: "https://mine.openai.azure.com/openai/v1", prices: {mine: {table: azure/o3}}', model="mine")
    assert made.prices_for("up") == {"mine": find_row("azure/o3")}
    with pytest.raises(SettingsError, match='no row "azure/o33", did you mean azure/o3'):
        settings("prices: {mine: {table: azure/o33}}")


@pytest.mark.parametrize(("days", "is_old"), [(0, False), (90, False), (91, True)])
def test_check_names_old_list_prices(days: int, is_old: bool) -> None:
    made, today = settings(""), CHECKED + timedelta(days=days)
    assert list_price_age_days(made, "up", today) == days
    (line,) = price_lines(made, today)
    assert line == f"upstream up: list prices for {MODEL}, {days} days old" + (
        ": check them, or set `prices`" if is_old else "")


def test_check_names_models_without_a_price() -> None:
    """Not for an upstream that has no prices at all."""
    assert list(price_lines(settings("", model="gpt-99"), CHECKED)) == [
        "upstream up: no price for gpt-99; its costs are unpriced"]
    assert list(price_lines(settings('base_url: "http://127.0.0.1:1/v1"'), CHECKED)) == []


def test_check_command_prints_list_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stayfast.yaml").write_text(
        f"upstreams: {{up: {{kind: openai, key: none}}}}\nroutes: {{chat: {{upstreams: [up], model: {MODEL}}}}}\n")
    assert main(["check", str(tmp_path / "stayfast.yaml")]) == 0
    assert f"upstream up: list prices for {MODEL}, " in capsys.readouterr().out


def test_price_table_rows_are_sourced_and_sane() -> None:
    """Each provider has its price list and a day. Reading from a cache is never dearer than input, writing never cheaper."""
    table = read_price_table()
    assert set(table.compared) == {"genai-prices", "litellm"}
    assert all(listed.source.startswith("https://") for listed in table.providers.values())
    assert all(listed.checked >= date(2026, 1, 1) for listed in table.providers.values())
    for name in all_rows():
        price = find_row(name)
        assert price is not None
        assert 0 <= price.input_per_mtok <= price.output_per_mtok or price.output_per_mtok == 0, name
        assert price.cached_read_per_mtok is None or price.cached_read_per_mtok <= price.input_per_mtok, name
        assert price.cache_write_per_mtok is None or price.cache_write_per_mtok >= price.input_per_mtok, name
        assert "latest" not in name


def test_list_prices_of_compatible_endpoints_have_their_names() -> None:
    """Google's OpenAI-compatible endpoints take prefixed names, too."""
    assert list_prices("google")["models/gemini-2.5-pro"] == list_prices("google")["gemini-2.5-pro"]
    vertex = list_prices_at("https://aiplatform.googleapis.com/v1/projects/p/locations/global/endpoints/openapi")
    assert "google/gemini-2.5-pro" in vertex
    assert list_prices_at("https://europe-west1-aiplatform.googleapis.com/v1") == {}


def test_list_price_of_a_known_model() -> None:
    """Anthropic's Claude Sonnet 5 and OpenAI's gpt-4.1, as on their price lists in November 2026."""
    assert find_row("anthropic/claude-sonnet-5") == ListPrice(
        2.0, 10.0, 0.2, 2.5, 4.0, 0.5, checked=read_price_table().providers["anthropic"].checked.toordinal())
    assert find_row("openai/gpt-4.1") == ListPrice(2.0, 8.0, 0.5, batch_factor=0.5, checked=CHECKED.toordinal())
