"""The way to an upstream: connections, handshakes, distance, buffers in between.

Problem: a handshake, a far region or a proxy adds the same time to each request, so no percentile looks wrong. Rule:

    handshakes      many requests open a connection, and that takes a good part of their first token
    not resumed     new TLS connections negotiate from the beginning
    far region      TCP alone takes one round trip: 200 km of fibre for each millisecond, there and back half of it
    slow handshake  connecting takes far longer than a round trip: DNS, TLS, or an accept queue
    clumps          all chunks of a stream arrive at once: something in front of the model buffers

Source: handshakes, session resumption and one region for all parts are advice of "LLM Latency In Production: What Actually
Works"; light in fibre travels 200 km per millisecond. When wrong: a lossy line has long connects without a distance; very
short answers come in one chunk anyway.
"""

from collections.abc import Iterable, Iterator

from stayfast.core.findings import Finding, FindingSite, SettingsChange
from stayfast.core.snapshot import Snapshot, UpstreamRow
from stayfast.core.units import format_seconds, format_share
from stayfast.policy.findings.check import Check
from stayfast.policy.findings.patches import change_settings
from stayfast.policy.findings.rows import HOUR_S, NOW_S, n_answered, observe, rows_of_upstream, share_of

MIN_OPENED = 20
MIN_ATTEMPTS = 50
OPENED = 0.3  # of requests; with pooled connections it is a few per cent
DEAR = 0.1  # of the first token: the mean cost per request, below it other things come first
RESUMED = 0.2
DEAR_HANDSHAKE_S = 0.03  # below 30 ms a second round trip is not worth an effort
MIN_CONNECTS = 10
FAR_S = 0.06  # one round trip; within a continent it is less (60 ms are 6,000 km of fibre)
ROUND_TRIPS = 4.0  # TCP, TLS 1.2 and DNS take at most four; beyond it something waits
SLOW_HANDSHAKE_S = 0.5  # a quarter of a promise of 2 s for the first token
CLUMPED = 0.5
MIN_STREAMS = 30
MIN_TOKENS = 30.0  # of an answer (p50): shorter ones may fit one chunk
LONG_KEEPALIVE_S = 240.0  # below the idle limits of common load balancers: 350 s (AWS NLB), 240 s (Azure)
SOURCE = "/admin/snapshot upstreams"


def _upstreams(snapshot: Snapshot) -> Iterator[tuple[UpstreamRow, FindingSite]]:
    for row in snapshot.upstreams:
        yield row, FindingSite(upstream=row.name)


def find_handshakes(snapshot: Snapshot) -> Iterable[Finding]:
    """Requests that wait for new connections."""
    for row, where in _upstreams(snapshot):
        opened, first_s, takes_s = share_of(row.n_opened, row.n_opened + row.n_reused), row.ttft_s.p50, row.handshake_s.p50
        if row.n_opened < MIN_OPENED or opened < OPENED or not first_s or not takes_s:
            continue
        if opened * takes_s < DEAR * first_s:
            continue
        now_s = snapshot.setting("upstreams", row.name, "keepalive_s")
        longer_s = LONG_KEEPALIVE_S if not isinstance(now_s, int | float) or now_s < LONG_KEEPALIVE_S else 2 * now_s
        yield Finding(
            "network.handshakes", "warn", where,
            f"{format_share(opened)} of requests to {row.name} open a connection, which takes {format_seconds(takes_s)} "
            "(p50).",
            "Connections close between requests, by the keep-alive time here or there, or the upstream closes after each "
            "answer.",
            evidence=(observe("opened", opened, "ratio", NOW_S, SOURCE),
                      observe("handshake p50", takes_s, "s", NOW_S, "stayfast_handshake_seconds"),
                      observe("first token p50", first_s, "s", NOW_S, SOURCE),
                      observe("opened", row.n_opened, "", NOW_S, SOURCE)),
            do=(change_settings(f"Connections wait for the next request: about {format_seconds(opened * takes_s)} less per "
                                "request on average.", {"upstreams": {row.name: {"keepalive_s": min(3600.0, longer_s)}}},
                                saves_s=takes_s),
                SettingsChange("If the upstream closes each connection: HTTP keep-alive or HTTP/2 there.")),
            verify=f"{SOURCE}: n_opened of {row.name} falls; stayfast_handshake_seconds_count grows slower")


def find_full_handshakes(snapshot: Snapshot) -> Iterable[Finding]:
    """TLS connections that never resume a session."""
    for row, where in _upstreams(snapshot):
        address = str(snapshot.setting("upstreams", row.name, "base_url") or "https:" if row.kind in ("openai", "anthropic")
                      else "")
        takes_s, resumed = row.handshake_s.p50 or 0.0, share_of(row.n_tls_resumed, row.n_opened)
        if row.n_opened < MIN_OPENED or resumed >= RESUMED or takes_s < DEAR_HANDSHAKE_S or not address.startswith("https"):
            continue
        if share_of(row.n_opened, row.n_opened + row.n_reused) < OPENED:
            continue
        yield Finding(
            "network.tls_not_resumed", "info", where,
            f"{format_share(resumed)} of {row.n_opened} new TLS connections to {row.name} resume a session.",
            "The upstream, or a balancer with several machines behind it, gives no usable session tickets.",
            evidence=(observe("resumed", resumed, "ratio", NOW_S, SOURCE),
                      observe("opened", row.n_opened, "", NOW_S, SOURCE),
                      observe("handshake p50", takes_s, "s", NOW_S, "stayfast_handshake_seconds")),
            do=(SettingsChange("At the upstream: TLS 1.3 with session tickets, one ticket key for all machines."),
                change_settings("One connection for many requests needs fewer handshakes.",
                                {"upstreams": {row.name: {"http": "2"}}})),
            verify=f"{SOURCE}: n_tls_resumed of {row.name} rises")


def find_far_region(snapshot: Snapshot) -> Iterable[Finding]:
    """Upstreams a continent away, by the time of TCP alone."""
    for row, where in _upstreams(snapshot):
        trip_s = row.connect_s.p50 or 0.0
        if row.connect_s.n < MIN_CONNECTS or trip_s < FAR_S:
            continue
        yield Finding(
            "network.far_region", "warn", where,
            f"TCP to {row.name} takes {format_seconds(trip_s)} (p50): about {trip_s * 100_000:.0f} km of fibre.",
            "The upstream, or the address that its name resolves to here, is in another region. Each handshake costs two to "
            "three round trips, each request one.",
            evidence=(observe("connect p50", trip_s, "s", NOW_S, SOURCE),
                      observe("connects", row.connect_s.n, "", NOW_S, SOURCE)),
            do=(SettingsChange(f"The gateway, the upstream and retrieval in one region: about {format_seconds(trip_s)} "
                               "less to each first token. Many providers have regional addresses.", saves_s=trip_s),),
            verify=f"{SOURCE}: connect_s p50 of {row.name} is under {format_seconds(FAR_S)}")


def find_slow_handshakes(snapshot: Snapshot) -> Iterable[Finding]:
    """Connections that take far longer than their round trips."""
    for row, where in _upstreams(snapshot):
        slow_s, trip_s = row.handshake_s.p95 or 0.0, row.connect_s.p50
        if row.handshake_s.n < MIN_OPENED or slow_s < SLOW_HANDSHAKE_S:
            continue
        if trip_s is not None and row.connect_s.n >= MIN_CONNECTS and slow_s < ROUND_TRIPS * trip_s:
            continue
        tcp_s = row.connect_s.p95 or 0.0
        limit_s = max(1.0, round(2 * (row.handshake_s.p50 or 0.5), 1))
        is_tcp = row.connect_s.n >= MIN_CONNECTS and tcp_s >= slow_s / 2
        yield Finding(
            "network.slow_handshake", "warn", where,
            f"New connections to {row.name} take {format_seconds(slow_s)} at the p95.",
            "TCP itself waits: lost packets, or a full accept queue of the upstream." if is_tcp else
            "TCP is quick, so DNS or TLS takes the time: a slow resolver, or an upstream short of CPU.",
            evidence=(observe("handshake p95", slow_s, "s", NOW_S, "stayfast_handshake_seconds"),
                      observe("connect p95", tcp_s, "s", NOW_S, SOURCE),
                      observe("handshakes", row.handshake_s.n, "", NOW_S)),
            do=(change_settings("An attempt whose connection hangs goes to another upstream sooner.",
                                {"defaults": {"timeouts": {"connect_s": limit_s}}}),
                SettingsChange("A caching resolver on this machine; TLS 1.3.")),
            verify="stayfast_handshake_seconds p95 falls")


def find_buffering(snapshot: Snapshot) -> Iterable[Finding]:
    """Streams whose chunks arrive all at once."""
    answers = {row.route: row.output_tokens for row in snapshot.prompts}
    for row, where in _upstreams(snapshot):
        served = rows_of_upstream(snapshot, row.name, HOUR_S)
        if (row.clumped_ratio or 0.0) < CLUMPED or sum(one.n_streamed for one in served) < MIN_STREAMS:
            continue
        lengths = [answers[one.route].p50 or 0.0 for one in served if one.route in answers and answers[one.route].n]
        if lengths and max(lengths) < MIN_TOKENS:
            continue
        waits = [one.e2e_s.p50 - (one.tpot_s.p50 or 0.0) for one in served if one.e2e_s.p50]
        yield Finding(
            "network.buffering_proxy", "act", where,
            f"{format_share(row.clumped_ratio or 0.0)} of the streams of {row.name} arrive all at once, at their end.",
            "A proxy in front of the model buffers the answer (nginx proxy_buffering, gzip, a CDN). Users wait for all of "
            "it.",
            evidence=(observe("clumped streams", row.clumped_ratio or 0.0, "ratio", NOW_S, SOURCE),
                      observe("streams", n_answered(served), "", HOUR_S, "stayfast_requests_total")),
            do=(SettingsChange("At the proxy: proxy_buffering off, or X-Accel-Buffering: no; no compression of "
                               "text/event-stream. The first token then comes when it is made"
                               + (f", not after {format_seconds(max(waits))} (p50)." if waits else ".")),),
            verify=f"{SOURCE}: clumped_ratio of {row.name} is about 0; stayfast_ttft_seconds falls")


CHECKS = (
    Check("network.handshakes", "many requests wait for a new connection", find_handshakes, ("network.tls_not_resumed",)),
    Check("network.tls_not_resumed", "new TLS connections do not resume sessions", find_full_handshakes),
    Check("network.far_region", "an upstream is in a far region", find_far_region),
    Check("network.slow_handshake", "connections take far longer than their round trips", find_slow_handshakes,
          ("network.handshakes",)),
    Check("network.buffering_proxy", "streams arrive all at once: a proxy buffers", find_buffering,
          ("latency.promise_missed", "latency.slow_upstream", "latency.uneven_upstreams")),
)
