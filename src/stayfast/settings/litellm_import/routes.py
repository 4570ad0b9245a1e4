"""From entries of `model_list` to upstreams and routes: entries with one name are a route, equal addresses an upstream."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from re import escape, fullmatch

from stayfast.settings.litellm_import.deployments import Deployment, UpstreamKey
from stayfast.settings.litellm_import.ledger import SourceNode
from stayfast.settings.litellm_import.scalars import bounded, escape_references, unused_name
from stayfast.settings.litellm_import.writer import OutSection
from stayfast.settings.price_table import list_prices

ANY_MODEL = "*"
_PRICE_LISTS = {"openai": "openai", "anthropic": "anthropic", "gemini": "google", "vertex": "vertex", "bedrock": "bedrock",
                "xai": "xai", "groq": "groq", "mistral": "mistral", "together": "together", "fireworks": "fireworks"}


@dataclass(slots=True)
class UpstreamEntry:
    """One upstream of the file that is being written. `models`: by route; written only where a route's upstreams differ."""

    name: str
    key: UpstreamKey
    models: dict[str, str] = field(default_factory=dict)
    written_models: dict[str, str] = field(default_factory=dict)
    prices: dict[str, dict[str, float | str]] = field(default_factory=dict)
    places: list[str] = field(default_factory=list)


class UpstreamTable:
    """The upstreams by what makes them. An upstream has one model name for a route, and one price for a model."""

    def __init__(self) -> None:
        self._entries: dict[tuple[UpstreamKey, int], UpstreamEntry] = {}
        self._names: set[str] = set()

    def assign(self, route: str, found: Deployment) -> UpstreamEntry:
        """The upstream of a deployment on a route, made if there is none that fits."""
        entry = next(entry for n in count() if self._fits(entry := self._entry(found.upstream, n), route, found))
        entry.models[route] = found.model
        if found.prices:
            entry.prices[found.model] = found.prices
        if found.entry.place not in entry.places:
            entry.places.append(found.entry.place)
        return entry

    def _entry(self, key: UpstreamKey, n: int) -> UpstreamEntry:
        entry = self._entries.get((key, n))
        if entry is None:
            entry = self._entries[key, n] = UpstreamEntry(self._new_name(key.provider), key)
        return entry

    @staticmethod
    def _fits(entry: UpstreamEntry, route: str, found: Deployment) -> bool:
        prices = entry.prices.get(found.model, found.prices)
        return entry.models.get(route, found.model) == found.model and (not found.prices or prices == found.prices)

    def _new_name(self, provider: str) -> str:
        name = unused_name(provider, "-", self._names)
        self._names.add(name)
        return name

    @property
    def entries(self) -> list[UpstreamEntry]:
        return list(self._entries.values())


@dataclass(frozen=True, slots=True)
class RouteMember:
    """One upstream of a route."""

    upstream: UpstreamEntry
    deployment: Deployment

    @property
    def model(self) -> str:
        return self.deployment.model


@dataclass(frozen=True, slots=True)
class FallbackStep:
    """Upstreams with one model name, tried after a route's own."""

    upstreams: tuple[str, ...]
    model: str

    def as_inline(self) -> Mapping[str, str | Sequence[str]]:
        return {"upstreams": list(self.upstreams), "model": escape_references(self.model)}


class ImportedRoute:
    """One route: its members by order, what they set together, and its fallbacks."""

    __slots__ = ("deployments", "fallback", "main", "name", "spare")

    def __init__(self, name: str, deployments: Sequence[Deployment], upstreams: UpstreamTable) -> None:
        self.name = name
        self.deployments = deployments
        self.fallback: list[FallbackStep] = []
        by_order: dict[float, list[RouteMember]] = {}
        known: set[str] = set()
        for found in sorted(deployments, key=lambda found: inf if found.order is None else found.order):
            entry = upstreams.assign(name, found)
            if entry.name in known:
                found.entry.differ(f"upstream {entry.name}", "the same as an entry above: one place in the route")
                continue
            known.add(entry.name)
            by_order.setdefault(inf if found.order is None else found.order, []).append(RouteMember(entry, found))
        tiers = list(by_order.values())
        self.main = tiers[0]
        self.spare = tiers[1:]

    @property
    def is_in_order(self) -> bool:
        """Whether the orders make a plain list of single upstreams."""
        return bool(self.spare) and all(len(tier) == 1 for tier in (self.main, *self.spare))

    @property
    def members(self) -> list[RouteMember]:
        """Those of the route itself, without fallbacks."""
        return [member for tier in (self.main, *self.spare) for member in tier] if self.is_in_order else self.main

    @property
    def steps(self) -> list[FallbackStep]:
        """All fallbacks: later orders first, then other routes. A step that is tried before is left out."""
        own = [] if self.is_in_order else [step for tier in self.spare for step in steps_of(tier)]
        return list(dict.fromkeys([*own, *self.fallback]))

    def largest(self, values: Iterable[float | None]) -> float | None:
        """The largest of the values that are set."""
        return max((value for value in values if value is not None), default=None)

    def write(self, section: OutSection) -> None:
        """Write what the entries of the route set."""
        members = self.members
        section.is_short = all(found.is_expanded for found in self.deployments)
        section.note("from " + ", ".join(dict.fromkeys(found.entry.place for found in self.deployments)))
        section.set("upstreams", [member.upstream.name for member in members])
        self._write_model(section)
        self._refuse_weights()
        if self.is_in_order:
            section.set("pick", "order")
        elif any(member.deployment.weight is not None for member in members) and len(members) > 1:
            for member in members:
                section.section("weights").set(member.upstream.name, member.deployment.weight or 1)
        if steps := self.steps:
            section.section("fallback").set("upstreams", list(steps[0].upstreams))
            section.section("fallback").set("model", escape_references(steps[0].model))
            if len(steps) > 1:
                section.section("fallback").set("then", [step.as_inline() for step in steps[1:]])
        self._write_limits(section)

    def _refuse_weights(self) -> None:
        ordered = (self.main, *self.spare) if self.is_in_order else self.spare
        for member in (member for tier in ordered for member in tier):
            params = member.deployment.entry.get("litellm_params")
            if params is not None and (weight := params.get("weight")) is not None:
                weight.refuse("upstreams that are tried in order have no weights")

    def _write_model(self, section: OutSection) -> None:
        members = self.members
        models = {member.model for member in members}
        if models == {ANY_MODEL} and self.name == ANY_MODEL:
            return
        if len(models) == 1:
            if self.name not in models:
                section.set("model", escape_references(members[0].model))
            return
        for member in members:
            if member.model != self.name:
                member.upstream.written_models[self.name] = escape_references(member.model)

    def _write_limits(self, section: OutSection) -> None:
        found = self.deployments
        total_s = self.largest(one.total_s for one in found)
        first_s = self.largest(one.first_token_s for one in found)
        attempts = self.largest(one.max_attempts for one in found)
        if total_s is not None:
            section.section("timeouts").set("total_s", total_s)
        if first_s is not None:
            section.section("timeouts").set("first_token_s", first_s)
        if attempts is not None:
            section.section("retry").set("max_attempts", int(attempts))
        if any(one.marks_prefix for one in found):
            section.section("prefix").set("mode", "auto")

    def input_limit(self) -> int | None:
        """The least `max_input_tokens` of the entries, in tokens."""
        limits = [bounded(one.max_input_tokens, 1, 100_000_000) for one in self.deployments]
        return int(min(limit for limit in limits if limit is not None)) if any(limits) else None

    def leave_input_limits(self) -> None:
        """Mark `max_input_tokens` of the entries as without effect."""
        for one in self.deployments:
            if one.max_input_tokens is not None:
                one.max_input_tokens.differ("nothing", "without enable_pre_call_checks no prompt is refused for its length")


def steps_of(members: Sequence[RouteMember]) -> Iterator[FallbackStep]:
    """Members as steps of a fallback: those with one model name together."""
    by_model: dict[str, list[str]] = {}
    for member in members:
        by_model.setdefault(member.model, []).append(member.upstream.name)
    for model, names in by_model.items():
        yield FallbackStep(tuple(names), model)


def group_deployments(found: Iterable[Deployment], aliases: Mapping[str, str]) -> dict[str, list[Deployment]]:
    """The deployments by the name of their route, patterns expanded, and aliases as routes of their own."""
    groups: dict[str, list[Deployment]] = {}
    patterns: list[Deployment] = []
    for one in found:
        if ANY_MODEL in one.group and one.group != ANY_MODEL:
            patterns.append(one)
        elif ANY_MODEL in one.model and one.group != ANY_MODEL:
            one.entry.refuse("a pattern of models under a single name")
        elif ANY_MODEL in one.model and one.model != ANY_MODEL:
            one.entry.refuse('no patterns: the route "*" forwards every name unchanged')
        else:
            groups.setdefault(one.group, []).append(one)
    exact = frozenset(groups)
    for one in patterns:
        for name, model in _expand(one):
            if name not in exact:
                groups.setdefault(name, []).append(replace(one, group=name, model=model, is_expanded=True))
    for alias, name in aliases.items():
        if name in groups and alias not in groups:
            groups[alias] = groups[name]
    return groups


def _expand(found: Deployment) -> list[tuple[str, str]]:
    """The routes and models that a pattern stands for, by the table of list prices."""
    before, _, after = found.group.partition(ANY_MODEL)
    listed = _PRICE_LISTS.get(found.upstream.provider)
    if listed is None or found.model.count(ANY_MODEL) != 1 or ANY_MODEL in after:
        found.entry.refuse("no patterns: write an entry for each model")
        return []
    start, _, end = found.model.partition(ANY_MODEL)
    pattern = f"{escape(start)}(.+){escape(end)}"
    made = []
    for model in list_prices(listed):
        match = fullmatch(pattern, model)
        if match is not None and not (listed == "vertex" and not model.startswith("gemini")):
            made.append((f"{before}{match.group(1)}{after}", model))
    if not made:
        found.entry.refuse("no patterns: write an entry for each model")
        return []
    found.entry.differ(f"a route for each of {len(made)} models of the table of list prices",
                       "no patterns: another name gets 404; add what you use, remove the rest")
    return made


def write_passthrough(found: Iterable[Deployment], upstreams: UpstreamTable, root: OutSection) -> None:
    """Write the paths whose requests are passed to an upstream."""
    taken: dict[str, str] = {}
    for one in found:
        path = one.passed_path or ""
        entry = upstreams.assign(f"{path} {one.model}", one)
        if taken.setdefault(path, entry.name) != entry.name:
            one.entry.refuse(f"one upstream serves {path}: `passthrough: {{paths: ...}}` has the first entry's")
            continue
        root.section("passthrough", "paths").set(path, entry.name, one.entry.place)
        one.entry.differ(f"`passthrough: {{paths: {{{path}: ...}}}}`", "requests are passed as they are" + (
            "" if one.group == one.model else f"; clients write the provider's own name as `model`: {one.model}"))


def write_upstream(entry: UpstreamEntry, section: OutSection) -> None:
    """Write one upstream."""
    key = entry.key
    section.note("from " + ", ".join(entry.places))
    section.set("kind" if key.is_kind else "provider", key.provider)
    for name, text in key.address:
        section.set(name, text)
    if key.key:
        section.set("key", key.key)
    for name, text in key.credentials:
        section.section("credentials").set(name, text)
    for name, text in key.headers:
        section.section("headers").set(name, text)
    if not key.verify:
        section.set("verify", False)
    _write_bounds(key, section)
    for route, model in entry.written_models.items():
        section.section("models").set(route, model)
    for model, prices in entry.prices.items():
        for name, price in prices.items():
            section.section("prices", model).set(name, price)


def _write_bounds(key: UpstreamKey, section: OutSection) -> None:
    for name, number in key.rate:
        section.section("rate").set(name, number)
    if key.limit is not None:
        section.section("limit").set("mode", "fixed")
        section.section("limit").set("max", key.limit)
    for name, number in key.breaker:
        section.section("breaker").set(name, number)


def alias_target(node: SourceNode) -> str | None:
    """The group of an alias: a name, or a mapping with `model`."""
    if not node.is_mapping:
        return node.text
    hidden, model = node.get("hidden"), node.get("model")
    if hidden is not None:
        hidden.differ("a route", "every route is listed by GET /v1/models")
    return model.text if model is not None else None
