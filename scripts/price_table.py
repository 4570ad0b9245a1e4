"""Write the table of list prices anew from two independent packages of PyPI; a row enters only where both agree.

    pip download --no-deps genai-prices litellm --dest /tmp/prices
    .venv/bin/python scripts/price_table.py /tmp/prices 2026-11-09

The date is that of the older of the two releases. genai-prices cites each provider's own page, which becomes the source.
Left out: names that move (`latest`), prices by time of day, audio, images and search, and tiers that are no multiple.
"""

import argparse
import json
import re
import sys
import zipfile
from datetime import UTC, datetime
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).parents[1] / "src" / "stayfast" / "settings" / "price_table.json"
# ours: (genai-prices, litellm's providers, the prefixes of its keys, whether cache writes are compared)
PROVIDERS = {
    "openai": ("openai", {"openai"}, ("openai/",)),
    "anthropic": ("anthropic", {"anthropic"}, ("anthropic/",)),
    "google": ("google", {"gemini"}, ("gemini/",)),
    "vertex": ("google", {"vertex_ai-language-models"}, ("vertex_ai/",)),
    "mistral": ("mistral", {"mistral"}, ("mistral/",)),
    "deepseek": ("deepseek", {"deepseek"}, ("deepseek/",)),
    "xai": ("x-ai", {"xai"}, ("xai/",)),
    "groq": ("groq", {"groq"}, ("groq/",)),
    "together": ("together", {"together_ai"}, ("together_ai/",)),
    "fireworks": ("fireworks", {"fireworks_ai"}, ("fireworks_ai/",)),
    "bedrock": ("aws", {"bedrock", "bedrock_converse"}, ("bedrock/", "bedrock_converse/")),
    "azure": ("azure", {"azure", "azure_ai"}, ("azure/", "azure_ai/")),
}
MODES = {"chat", "responses", "completion", "embedding"}
LEFT_OUT = re.compile(r"latest|audio|realtime|search|image|transcribe|tts|ft:|computer-use|deep-research|live|guard|robotics"
                      "|omni")
MANY_NAMES = {"groq", "together", "fireworks"}  # names of these contain slashes
FIVE = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok")
FIELDS = ("input_per_mtok", "output_per_mtok", "cached_read_per_mtok", "cache_write_per_mtok", "cache_write_1h_per_mtok")
LITELLM = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost",
           "cache_creation_input_token_cost", "cache_creation_input_token_cost_above_1hr")
TIER = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")


class Rates(NamedTuple):
    """USD per million tokens, in the order of FIELDS."""

    base: tuple[float | None, ...]
    long_above: int | None
    long: tuple[float | None, ...]


def read_litellm(row: dict[str, Any]) -> Rates:
    above = next((int(found[1]) for name in row if (found := TIER.fullmatch(name))), None)
    suffix = f"_above_{above}k_tokens" if above is not None else ""

    def rate(name: str) -> float | None:
        return round(row[name] * 1e6, 9) if isinstance(row.get(name), int | float) else None

    return Rates(tuple(map(rate, LITELLM)), above * 1000 if above is not None else None,
                 tuple(rate(name + suffix) for name in LITELLM) if suffix else ())


def read_genai(prices: Any) -> Rates | None:
    base, long, starts = [], [], set()
    for name in FIVE:
        value = getattr(prices, name)
        tiers = getattr(value, "tiers", ())
        if len(tiers) > 1:
            return None
        base.append(None if value is None else float(value.base if tiers else value))
        long.append(float(tiers[0].price) if tiers else None)
        starts |= {tier.start for tier in tiers}
    if len(starts) > 1:
        return None
    start = round(starts.pop(), -3) if starts else None
    return Rates(tuple(base), start, tuple(long) if start is not None else ())


def merge(ours: str, one: Rates, other: Rates, row: dict[str, Any]) -> dict[str, Any] | None:
    """A row of the table; None where the packages differ."""
    is_embedding = row["mode"] == "embedding"
    compared = [(a, b) for n, (a, b) in enumerate(zip(one.base, other.base, strict=True)) if n != 1 or not is_embedding]
    if one.base[0] is None or any(a != b for a, b in compared[:2 if is_embedding else 3]):
        return None
    if any(a is not None and b is not None and a != b for a, b in compared[3:]):
        return None
    if ours == "anthropic" and (one.base[3] is None or other.base[3] is None):
        return None
    merged: dict[str, Any] = {name: a for name, a, b in zip(FIELDS, one.base, other.base, strict=True)
                              if a is not None and (b is not None or name == "output_per_mtok")}
    if ours != "anthropic" and one.long_above != other.long_above:
        return None
    if one.long_above is not None and one.long_above == other.long_above:
        factors = [(a / base, b / base) for base, a, b in zip(one.base, one.long, other.long, strict=False)
                   if base and a is not None and b is not None]
        inputs = factors[:1] + factors[2:]
        if len(factors) < 2 or any(abs(a - b) > 1e-9 for a, b in factors) or any(
                abs(a[0] - b[0]) > 1e-9 for a, b in pairwise(inputs)):
            return None
        merged["long_prompt"] = {"above_tokens": one.long_above, "input_factor": round(factors[0][0], 6),
                                 "output_factor": round(factors[1][0], 6)}
    batch = {round(row[name + "_batches"] / row[name], 6) for name in LITELLM[:2]
             if row.get(name) and row.get(name + "_batches")}
    if len(batch) == 1 and (factor := batch.pop()) < 1.0:
        merged["batch_factor"] = factor
    return merged


def rows_of(ours: str, provider: Any, litellm: dict[str, Any], at: datetime) -> dict[str, Any]:
    _, theirs, prefixes = PROVIDERS[ours]
    rows = {}
    for key, row in litellm.items():
        name = next((key.removeprefix(prefix) for prefix in prefixes if key.startswith(prefix)), key)
        if (row.get("litellm_provider") not in theirs or row.get("mode") not in MODES or LEFT_OUT.search(name)
                or ("/" in name and ours not in MANY_NAMES)):
            continue
        models = [model for model in provider.models if model.is_match(name)]
        if len(models) != 1 or {repr(models[0].get_prices(at.replace(hour=hour))) for hour in range(24)} != {
                repr(models[0].get_prices(at))}:
            continue
        other = read_genai(models[0].get_prices(at))
        merged = merge(ours, read_litellm(row), other, row) if other is not None else None
        if merged is not None and name not in rows:
            rows[name] = merged
    return dict(sorted(rows.items()))


def format_table(table: dict[str, Any]) -> str:
    """JSON with a line for each model."""
    parts = []
    for ours, found in table["providers"].items():
        rows = ",\n".join(f"   {json.dumps(name)}: {json.dumps(row)}" for name, row in found["models"].items())
        head = json.dumps({"source": found["source"], "checked": found["checked"]})[:-1]
        parts.append(f'  {json.dumps(ours)}: {head}, "models": {{\n{rows}}}}}')
    return f'{{"compared": {json.dumps(table["compared"])},\n "providers": {{\n' + ",\n".join(parts) + "}}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with a wheel of each package")
    parser.add_argument("date", help="of the older release")
    options = parser.parse_args()
    (genai,), (litellm,) = options.folder.glob("genai_prices-*.whl"), options.folder.glob("litellm-*.whl")
    sys.path.insert(0, str(genai))
    providers = {provider.id: provider for provider in import_module("genai_prices.data").providers}
    with zipfile.ZipFile(litellm) as wheel:
        prices = json.loads(wheel.read("litellm/model_prices_and_context_window_backup.json"))
    at = datetime.fromisoformat(options.date).replace(tzinfo=UTC)
    made = {ours: {"source": providers[theirs].pricing_urls[-1 if ours == "vertex" else 0], "checked": options.date,
                   "models": rows_of(ours, providers[theirs], prices, at)} for ours, (theirs, _, _) in PROVIDERS.items()}
    made = {ours: found for ours, found in made.items() if found["models"]}
    versions = [path.name.split("-")[:2] for path in (genai, litellm)]
    head = {"compared": {name.replace("_", "-"): version for name, version in versions}, "providers": made}
    TABLE.write_text(format_table(head), encoding="utf-8")
    for ours, found in made.items():
        sys.stdout.write(f"{ours}: {len(found['models'])} models\n")


if __name__ == "__main__":
    main()
