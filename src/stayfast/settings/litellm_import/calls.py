"""`router_settings` and `litellm_settings`: time limits, retries, breakers, fallbacks, caches, logs."""

from collections.abc import Mapping

from stayfast.settings.litellm_import.known import CACHE, CALLS, mark_known
from stayfast.settings.litellm_import.ledger import SourceNode
from stayfast.settings.litellm_import.redis_address import redis_url
from stayfast.settings.litellm_import.routes import ImportedRoute, steps_of
from stayfast.settings.litellm_import.scalars import (
    SecretNames,
    as_reference,
    bounded,
    is_off,
    names_of,
    number_of,
    read_switch,
    variable_of,
)
from stayfast.settings.litellm_import.writer import OutSection

_SESSIONS = frozenset({"session_affinity", "deployment_affinity", "responses_api_deployment_check",
                       "encrypted_content_affinity"})
_NOT_RETRIED = frozenset({"BadRequestErrorRetries", "AuthenticationErrorRetries", "ContentPolicyViolationErrorRetries",
                          "NotFoundErrorRetries"})
_RETRIED = frozenset({"TimeoutErrorRetries", "RateLimitErrorRetries", "InternalServerErrorRetries",
                      "ServiceUnavailableErrorRetries", "DefaultRetries"})
_REDIS_PARTS = frozenset({"host", "port", "username", "password", "url", "db", "ssl", "namespace"})
_LONGEST_S = 86_400
_YEAR_S = 31_536_000


class CallSettings:
    """Both sections; `router_settings` takes precedence."""

    def __init__(self, router: SourceNode | None, litellm: SourceNode | None, out: OutSection, secrets: SecretNames) -> None:
        self._out = out
        self._secrets = secrets
        self._found: dict[str, SourceNode] = {}
        self.store = ""  # of caches
        for section in (router, litellm):
            if section is None:
                continue
            mark_known(section, CALLS)
            for name, node in section.entries().items():
                if name in self._found:
                    node.differ("nothing", "the same key of router_settings applies")
                else:
                    self._found[name] = node

    def get(self, name: str) -> SourceNode | None:
        """A setting that is not null."""
        node = self._found.get(name)
        return None if node is None or node.is_null else node

    def first(self, *names: str) -> SourceNode | None:
        """The first of these settings that is given; the others are marked as overridden."""
        given = [node for node in map(self.get, names) if node is not None]
        for node in given[1:]:
            node.differ("nothing", f"{given[0].name} applies")
        return given[0] if given else None

    def write_defaults(self) -> None:
        """Write time limits, retries and breakers to `defaults`."""
        for name, node, low, high, more in (
            ("total_s", self.first("timeout", "request_timeout"), 0.001, _LONGEST_S, 0),
            ("first_token_s", self.get("stream_timeout"), 0.001, _LONGEST_S, 0),
        ):
            self._put(("defaults", "timeouts"), name, bounded(node, low, high, more=more), node)
        policy, retries = self.get("retry_policy"), self.get("num_retries")
        attempts = most_attempts(policy) if policy is not None else None
        if attempts is not None:
            self._put(("defaults", "retry"), "max_attempts", attempts, policy)
            if retries is not None:
                retries.differ("nothing", "retry_policy applies")
        elif retries is not None:
            self._put(("defaults", "retry"), "max_attempts", bounded(retries, 1, 10, more=1), retries)
        self._write_backoff()
        self._write_breaker()

    def _write_backoff(self) -> None:
        after = self.get("retry_after")
        if after is None or number_of(after) == 0:
            return
        base_s = bounded(after, 0.001, 60)
        self._put(("defaults", "retry"), "backoff_base_s", base_s, after)
        if base_s is not None and base_s > 5:
            self._put(("defaults", "retry"), "backoff_cap_s", base_s, after)

    def _write_breaker(self) -> None:
        cooldown, fails = self.get("cooldown_time"), self.get("allowed_fails")
        off = self.get("disable_cooldowns")
        if read_switch(off):
            self._put(("defaults", "breaker"), "enabled", False, off)
        if cooldown is not None and number_of(cooldown) == 0:
            cooldown.differ("`defaults: {breaker: {enabled: false}}`", "no cooldown: no breaker")
            self._put(("defaults", "breaker"), "enabled", False, cooldown)
        else:
            self._put(("defaults", "breaker"), "open_s", bounded(cooldown, 0.001, _LONGEST_S), cooldown)
        self._put(("defaults", "breaker"), "consecutive_failures", bounded(fails, 1, 1000, more=1), fails)

    def _put(self, path: tuple[str, ...], name: str, value: float | bool | str | None, node: SourceNode | None) -> None:
        if value is not None and node is not None:
            self._out.section(*path).set(name, value, node.place)

    def write_logs(self) -> None:
        """Write logging, metrics and tracing."""
        for name in ("set_verbose", "debug_level"):
            node = self.get(name)
            if node is not None and ((node.text or "").upper() == "DEBUG" or read_switch(node)):
                self._put(("log",), "level", "debug", node)
        node = self.get("json_logs")
        self._put(("log",), "format", "json" if read_switch(node) else None, node)
        node = self.get("require_auth_for_metrics_endpoint")
        self._put(("server",), "metrics_access", "open" if read_switch(node) is False else None, node)
        for name in ("callbacks", "success_callback", "failure_callback", "service_callback"):
            sinks = self.get(name)
            for sink in names_of(sinks) if sinks is not None else []:
                self._write_sink(sink)

    def _write_sink(self, sink: SourceNode) -> None:
        word = sink.text or ""
        if word == "prometheus":
            sink.differ("`metrics`, which are on", "other names of metrics: docs/reference/metrics.md")
            self._put(("metrics",), "enabled", True, sink)
        elif word in ("otel", "opentelemetry", "arize_phoenix"):
            write_tracing(self._out, sink)
        else:
            sink.refuse("Stayfast writes JSON log lines, OpenTelemetry spans and Prometheus metrics; this sink is not among "
                        "them")

    def write_fleet(self, coordination: SourceNode | None) -> None:
        """Write the address of Redis for shared limits."""
        parts = {name: node for name in ("url", "host", "port", "username", "password", "db", "ssl")
                 if (node := self.get(f"redis_{name}")) is not None}
        source = next(iter(parts.values()), None)
        if coordination is not None and coordination.entries():
            for node in parts.values():
                node.differ("nothing", "general_settings.coordination_redis applies")
            parts, source = coordination.entries(), coordination
            for name, node in parts.items():
                if name not in ("url", "host", "port", "username", "password", "db", "ssl"):
                    node.refuse("one Redis address: of a cluster's or sentinel's proxy")
        if source is None:
            return
        url = redis_url(parts, self._secrets)
        if url is None:
            source.refuse("without a usable address of Redis")
        self._put(("fleet",), "url", url, source)

    def write_store(self) -> bool:
        """Write the store of caches. Whether routes have a cache."""
        switch, params = self.first("cache", "cache_responses"), self.get("cache_params")
        if params is not None:
            mark_known(params, CACHE)
        if not read_switch(switch) or switch is None:
            if params is not None:
                params.differ("nothing", "cache is not true: LiteLLM ignores them, too")
            return False
        given = params.entries() if params is not None else {}
        kind = given["type"].text if "type" in given else "redis"
        if "mode" in given and given["mode"].text == "default_off":
            switch.differ("no cache", "cache_params.mode is default_off")
            return False
        if kind is not None and kind.startswith(("redis", "valkey")):
            return self._write_redis(given, switch)
        for name in _REDIS_PARTS & given.keys():
            given[name].differ("nothing", "the cache is not in Redis")
        if kind == "disk":
            self._out.section("stores", "disk").set("kind", "sqlite", switch.place)
            self._out.section("stores", "disk").set("path", "stayfast-cache.sqlite")
            self.store = "disk"
        elif kind != "local" and "type" in given:
            given["type"].differ("`cache: {mode: exact}`, in memory", "no such store: answers are in each worker's memory")
        return True

    def _write_redis(self, given: Mapping[str, SourceNode], switch: SourceNode) -> bool:
        url = redis_url(given, self._secrets)
        if url is None:
            switch.refuse("without a usable address of Redis")
            return False
        store = self._out.section("stores", "redis")
        store.set("kind", "redis", switch.place)
        store.set("url", url)
        prefix = given.get("namespace")
        if prefix is not None and prefix.text:
            store.set("prefix", as_reference(prefix.text), prefix.place)
        self.store = "redis"
        return True

    def write_cache(self, section: OutSection) -> None:
        """Write the cache of one route."""
        cache = section.section("cache")
        cache.set("mode", "exact")
        if self.store:
            cache.set("store", self.store)
        params = self.get("cache_params")
        given = params.entries() if params is not None else {}
        ttl = given.get("ttl") or given.get("default_in_redis_ttl")
        ttl_s = bounded(ttl, 0.001, _YEAR_S)
        if ttl is not None and ttl_s is not None:
            cache.set("ttl_s", ttl_s, ttl.place)

    def write_affinity(self, section: OutSection, route: ImportedRoute) -> None:
        """Write the affinity of one route of several upstreams."""
        checks = self.get("optional_pre_call_checks")
        words = {item.text for item in names_of(checks)} if checks is not None else set()
        mode = {(True, True): "both", (True, False): "prefix", (False, True): "sessions"}.get(
            ("prompt_caching" in words, bool(words & _SESSIONS)))
        if mode is not None and len(route.members) > 1 and not route.is_in_order:
            section.section("affinity").set("mode", mode)

    def refuse_checks(self) -> None:
        """Mark the checks that become nothing."""
        checks = self.get("optional_pre_call_checks")
        for item in names_of(checks) if checks is not None else []:
            if item.text == "enforce_model_rate_limits":
                item.take("`rate` of the upstreams")
            elif item.text != "prompt_caching" and item.text not in _SESSIONS:
                item.refuse("no such check")


def most_attempts(policy: SourceNode) -> int | None:
    """The attempts that a retry policy allows at most, the first included; None if it has no usable number."""
    found = []
    for name, node in policy.entries().items():
        if name in _RETRIED:
            made = bounded(node, 1, 10, more=1)
            found += [int(made)] if made is not None else []
        elif name in _NOT_RETRIED:
            if number_of(node) == 0 or is_off(node):
                node.take("never retried")
            else:
                node.refuse("such failures are never retried: another attempt would fail, too")
        else:
            node.refuse("no class of failures that the import knows")
    return max(found, default=None)


def write_tracing(out: OutSection, source: SourceNode) -> None:
    """Write the export of spans; the address is OpenTelemetry's own variable."""
    out.section("tracing").set("exporter", "otlp", source.place)
    out.section("tracing").set("endpoint", "${OTEL_EXPORTER_OTLP_ENDPOINT:-http://127.0.0.1:4318}")
    source.differ("`tracing`", "to OTEL_EXPORTER_OTLP_ENDPOINT, over HTTP; LiteLLM also reads OTEL_ENDPOINT")


def add_fallbacks(routes: Mapping[str, ImportedRoute], calls: CallSettings) -> None:
    """Give the routes their fallbacks: by name, those of "*", and the default ones."""
    by_name: dict[str, list[SourceNode]] = {}
    fallbacks = calls.get("fallbacks")
    for entry in names_of(fallbacks) if fallbacks is not None else []:
        for name, targets in entry.entries().items():
            if name != "*" and name not in routes:
                targets.refuse("no route of this name was imported")
            else:
                by_name.setdefault(name, []).extend(names_of(targets))
        if not entry.is_mapping:
            entry.refuse("must be a mapping of a name to a list of names")
    default = calls.get("default_fallbacks")
    common = [*by_name.pop("*", []), *(names_of(default) if default is not None else [])]
    for name, route in routes.items():
        for target in by_name.get(name, common):
            _add_fallback(route, target, routes)


def _add_fallback(route: ImportedRoute, target: SourceNode, routes: Mapping[str, ImportedRoute]) -> None:
    name = target.text
    if name is not None and name == route.name:
        return
    other = routes.get(name) if name is not None else None
    if other is None or (name == "*" and any("*" in member.model for member in other.main)):
        target.refuse("no route of this name was imported" if target.text is not None and variable_of(target.text) is None
                      else "only names of routes can be fallbacks")
        return
    route.fallback += steps_of(other.members)
