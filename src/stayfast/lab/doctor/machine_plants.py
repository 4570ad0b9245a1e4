"""The gateway's machine and its lines to upstreams, planted."""

from typing import Any

from stayfast.lab.doctor.recorded import GIB, MIB, spread, with_machine, with_upstream
from stayfast.lab.doctor.scene import Plant, Scene

MACHINE, LINE = frozenset({"machine"}), frozenset({"far"})
FAR = {"kind": "openai", "base_url": "https://far.example/v1", "key": "k", "probe": False}
POOLED: dict[str, Any] = {
    "kind": "openai", "n_attempts": 600, "ttft_s": spread(0.4, 0.6, 0.8), "handshake_s": spread(0.03, 0.05, 0.06, 40),
    "connect_s": spread(0.006, 0.009, 0.01, 40), "n_opened": 12, "n_reused": 588, "n_tls_resumed": 9}
OFTEN: dict[str, Any] = {"n_opened": 400, "n_reused": 200, "n_tls_resumed": 350, "handshake_s": spread(0.12, 0.2, 0.3, 400)}


def _machine(scene: Scene, **fields: Any) -> Scene:
    return scene.amend(with_machine(**fields))


def _line(scene: Scene, **fields: Any) -> Scene:
    """An upstream of the network; virtual time sends nothing there."""
    return scene.set(upstreams={"far": FAR}).amend(with_upstream("far", **{**POOLED, **fields}))


def _clumped(scene: Scene, share: float) -> Scene:
    written = {"chunks_per_write": 10_000} if share > 0.5 else {}
    return scene.set(upstreams={"north": {"gaps": written}}).amend(with_upstream("north", clumped_ratio=share))


PLANTS = (
    Plant("worker that leaks", "machine.memory_grows", True,
          lambda scene: _machine(scene, rss_growth_bytes_per_h=90.0 * MIB, uptime_s=40_000.0), touches=MACHINE),
    Plant("worker that has just started", "machine.memory_grows", False,
          lambda scene: _machine(scene, rss_growth_bytes_per_h=400.0 * MIB, uptime_s=900.0), touches=MACHINE),
    Plant("worker at its memory limit", "machine.memory_near_limit", True,
          lambda scene: _machine(scene, rss_bytes=int(1.85 * GIB)), touches=MACHINE),
    Plant("large worker on a large machine", "machine.memory_near_limit", False,
          lambda scene: _machine(scene, rss_bytes=int(1.85 * GIB), memory_limit_bytes=16 * GIB), touches=MACHINE),
    Plant("limit of 1,024 descriptors", "machine.descriptors", True,
          lambda scene: _machine(scene, descriptors=940, max_descriptors=1024), touches=MACHINE),
    Plant("many connections and many descriptors", "machine.descriptors", False,
          lambda scene: _machine(scene, descriptors=9400), touches=MACHINE),
    Plant("CPU quota of half a core", "machine.throttled", True,
          lambda scene: _machine(scene, throttled_ratio=0.3, n_cpus=0.5, cpu_ratio=0.48,
                                 loop_lag_s=spread(0.004, 0.09, 0.1, 6000)), touches=MACHINE),
    Plant("CPU quota that is hardly used", "machine.throttled", False,
          lambda scene: _machine(scene, throttled_ratio=0.004, n_cpus=0.5, cpu_ratio=0.2), touches=MACHINE),
    Plant("blocking call in a turn", "machine.loop_stalls", True,
          lambda scene: _machine(scene, loop_lag_s=spread(0.001, 0.12, 0.4, 6000)), touches=MACHINE),
    Plant("one pause at a reload", "machine.loop_stalls", False,
          lambda scene: _machine(scene, loop_lag_s=spread(0.001, 0.006, 0.2, 6000)), touches=MACHINE),
    Plant("collections of 150 ms", "machine.gc_pauses", True,
          lambda scene: _machine(scene, gc_pause_s=spread(0.08, 0.14, 0.15, 40),
                                 loop_lag_s=spread(0.001, 0.06, 0.15, 6000)), touches=MACHINE),
    Plant("one long collection", "machine.gc_pauses", False,
          lambda scene: _machine(scene, gc_pause_s=spread(0.15, n=1)), touches=MACHINE),
    Plant("clock that was set by 4 seconds", "machine.clock_jumps", True, lambda scene: _machine(scene, clock_step_s=4.0),
          touches=MACHINE),
    Plant("clock that was slewed", "machine.clock_jumps", False, lambda scene: _machine(scene, clock_step_s=0.05),
          touches=MACHINE),
    Plant("debug log under traffic", "machine.debug_log", True, lambda scene: _machine(scene, log_level="debug"),
          touches=MACHINE),
    Plant("log of warnings", "machine.debug_log", False, lambda scene: _machine(scene, log_level="warning"),
          touches=MACHINE),
    Plant("one full worker on four cores", "machine.idle_cores", True, lambda scene: _machine(scene, cpu_ratio=0.97),
          touches=MACHINE),
    Plant("one worker at half a core", "machine.idle_cores", False, lambda scene: _machine(scene, cpu_ratio=0.5),
          touches=MACHINE),
    Plant("four full workers on four cores", "machine.cpu_full", True,
          lambda scene: _machine(scene, n_workers=4, cpu_ratio=0.97), touches=MACHINE),
    Plant("four workers of which each has room", "machine.cpu_full", False,
          lambda scene: _machine(scene, n_workers=4, cpu_ratio=0.6), touches=MACHINE),
    Plant("reader of the log that is too slow", "machine.lost_lines", True, lambda scene: _machine(scene, n_lost_lines=900),
          touches=MACHINE),
    Plant("reader of the log that follows", "machine.lost_lines", False, _machine, touches=MACHINE),
    Plant("worker that hangs", "machine.silent_workers", True, lambda scene: _machine(scene, n_workers=4, n_silent=1),
          touches=MACHINE),
    Plant("workers that all answer", "machine.silent_workers", False, lambda scene: _machine(scene, n_workers=4),
          touches=MACHINE),
    Plant("a new connection for most requests", "network.handshakes", True, lambda scene: _line(scene, **OFTEN),
          touches=LINE),
    Plant("new connections within one machine", "network.handshakes", False,
          lambda scene: _line(scene, **{**OFTEN, "handshake_s": spread(0.001, n=400)}), touches=LINE),
    Plant("new TLS sessions for most requests", "network.tls_not_resumed", True,
          lambda scene: _line(scene, **{**OFTEN, "n_tls_resumed": 0}), frozenset({"network.handshakes"}), LINE),
    Plant("few new TLS sessions", "network.tls_not_resumed", False, lambda scene: _line(scene, n_tls_resumed=0),
          touches=LINE),
    Plant("upstream on another continent", "network.far_region", True,
          lambda scene: _line(scene, connect_s=spread(0.15, 0.16, 0.2, 40), handshake_s=spread(0.31, 0.33, 0.4, 40)),
          touches=LINE),
    Plant("near upstream with lost packets", "network.far_region", False,
          lambda scene: _line(scene, connect_s=spread(0.006, 0.2, 0.25, 40)), touches=LINE),
    Plant("slow resolver", "network.slow_handshake", True,
          lambda scene: _line(scene, handshake_s=spread(0.03, 2.0, 2.1, 40)), touches=LINE),
    Plant("three round trips to another continent", "network.slow_handshake", False,
          lambda scene: _line(scene, connect_s=spread(0.2, 0.21, 0.22, 40), handshake_s=spread(0.6, 0.62, 0.7, 40)),
          frozenset({"network.far_region"}), LINE),
    Plant("proxy that buffers streams", "network.buffering_proxy", True, lambda scene: _clumped(scene, 0.98),
          touches=frozenset({"chat.ttft", "chat.gaps"})),
    Plant("streams with some clumps", "network.buffering_proxy", False, lambda scene: _clumped(scene, 0.1),
          touches=frozenset({"chat.gaps"})),
)
