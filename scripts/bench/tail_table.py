"""The table and the picture at the top of README: one heavy-tailed provider pair, and what people put in front of it.

    .venv/bin/python -m scripts.bench.tail_table --litellm /tmp/litellm --out docs/images/tail.svg

The providers are those of `stayfast prove tail`: two, each with p99 8 s, as processes on loopback. Each contender has a
pair of its own with the same seeds, and gets the same requests (open loop, Poisson arrivals, streams of two tokens, waits
from the intended start), in turns of 25 s. Each rival has the best constant time-out for exactly this mixture (0.5 s, six
tries: see `TailRivals` of `prove tail`), which its user would have to know. Stayfast has its defaults.

sdk: the OpenAI SDK without settings (2 retries, time-out 600 s), one provider. sdk tuned: time-out 0.5 s, 5 retries.
nginx: proxy_read_timeout 500ms, proxy_next_upstream with 6 tries on both. nginx does not hedge.
litellm: its proxy with num_retries, timeout, stream_timeout and fallbacks (--litellm: a virtual environment with
litellm[proxy]; without it the row is left out). Cooldowns are off: a time-out would take a deployment out for 5 s.
stayfast: no settings but the two upstreams.

added p50: at an upstream that answers at once, over the bench client without a gateway. The rate is far below everybody's
capacity. A failed request counts as infinitely slow.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path
from tempfile import TemporaryDirectory

import openai

from scripts.bench.run import free_ports
from scripts.pictures.draw import Line, Words, picture
from stayfast.core.clock import Clock, SystemClock
from stayfast.core.units import format_seconds
from stayfast.lab.claims.tail import heavy_tailed
from stayfast.lab.harness.load import LoadSpec
from stayfast.lab.harness.processes import MODEL, Processes, ServerProcess, gateway_settings
from stayfast.lab.harness.waits import read_waits
from stayfast.lab.load.client import HttpTarget, LoadTargetConfig
from stayfast.lab.load.measure import LoadOrigin, run_plan
from stayfast.lab.load.result import Error, Result, Sample, Subject
from stayfast.lab.load.runner import DueShot, LoadTarget
from stayfast.lab.load.schedule import Prompts, generate_shots
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.simulated import ProviderConfig

SDK, SDK_TUNED, NGINX, LITELLM, STAYFAST = "sdk", "sdk tuned", "nginx", "litellm", "stayfast"
KEY = "sk-loopback-only-1234"
TIMEOUT_S, N_TRIES, TURN_S = 0.5, 6, 25.0
_NGINX = """\
daemon off; worker_processes 1; pid nginx.pid; error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  upstream pair {{ {servers} keepalive 64; }}
  proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout {read_ms}ms;
  proxy_next_upstream error timeout http_429 http_500 http_502 http_503 http_504 non_idempotent;
  proxy_next_upstream_tries {tries};
  server {{ listen 127.0.0.1:{port}; location /v1/ {{ proxy_pass http://pair/nginx/v1/; }}
    location /instant/ {{ proxy_pass http://pair/instant/; }} }}
}}
"""


class SdkTarget:
    """The official SDK as the client: its own time-outs and retries are the policy."""

    counted_by = "chunks"

    def __init__(self, url: str, prompts: Prompts, clock: Clock, timeout_s: float, n_retries: int) -> None:
        self._client = openai.AsyncOpenAI(base_url=url, api_key=KEY, timeout=timeout_s, max_retries=n_retries)
        self._prompts = prompts
        self._clock = clock

    async def send(self, due: DueShot) -> Sample:
        first_at, error, sent_at = nan, Error.NONE, self._clock.now()
        try:
            async with asyncio.timeout_at(due.timeout_at):
                stream = await self._client.chat.completions.create(
                    model=MODEL, stream=True, max_tokens=due.shot.n_output,
                    messages=[{"role": "user", "content": self._prompts.user_message(due.shot)}])
                async for chunk in stream:
                    if chunk.choices and chunk.choices[0].delta.content and first_at != first_at:
                        first_at = self._clock.now()
        except TimeoutError:
            error = Error.TIMEOUT
        except openai.OpenAIError:
            error = Error.STATUS
        ended_at, zero_at = self._clock.now(), due.zero_at
        return Sample(due.shot.number, due.shot.at_s, sent_s=sent_at - zero_at, first_s=first_at - zero_at,
                      ended_s=ended_at - zero_at, status=0 if error else 200, error=error)

    def close(self) -> None:
        """The client closes with the process."""


@dataclass
class Contender:
    """`url`: of its pair; `instant_url`: of the provider that answers at once."""

    name: str
    url: str
    instant_url: str
    waits_s: list[float] = field(default_factory=list)
    p99s_s: list[float] = field(default_factory=list)
    added_s: float = nan


def make_target(contender: Contender, prompts: Prompts, load: LoadSpec, clock: Clock) -> LoadTarget:
    if contender.name == SDK:
        return SdkTarget(contender.url, prompts, clock, 600.0, 2)
    if contender.name == SDK_TUNED:
        return SdkTarget(contender.url, prompts, clock, TIMEOUT_S, N_TRIES - 1)
    return HttpTarget(contender.name, LoadTargetConfig(contender.url, load.request_config()), prompts, clock)


async def run_turns(targets: Mapping[str, LoadTarget], load: LoadSpec, seed: int, clock: Clock) -> dict[str, Result]:
    """The same requests for each target, in turns."""
    plan = load.plan(seed)
    plan = type(plan)(plan.workload, plan.limit, seed, 0, load.timeout_s, min(TURN_S, load.seconds))
    subjects = [(Subject(name, "", "chat", MODEL), target) for name, target in targets.items()]
    return {result.label: result for result in await run_plan(plan, subjects, clock, LoadOrigin())}


@contextlib.contextmanager
def make_folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="stayfast-table-") as folder:
        yield Path(folder)


@contextlib.asynccontextmanager
async def server(command: Sequence[str], folder: Path, port: int) -> AsyncIterator[None]:
    """A foreign server, from its first accepted connection to the end of the block."""
    with (folder / f"{port}.log").open("wb") as log:
        child = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=log, stderr=log,
                                                     env={**os.environ, "LITELLM_LOG": "ERROR"})
    try:
        ends_at = time.monotonic() + 120
        while True:
            try:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                break
            except OSError:
                if child.returncode is not None or time.monotonic() > ends_at:
                    printed = (folder / f"{port}.log").read_text()[-3000:]
                    raise SystemExit(f"{command[0]} does not listen:\n{printed}") from None
                await asyncio.sleep(0.2)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        await child.wait()


def nginx_config(sims: Sequence[ServerProcess], port: int) -> str:
    """Each server three times, since nginx tries a server once."""
    servers = " ".join(f"server {sim.url.removeprefix('http://')} max_fails=0;" for sim in [*sims] * (N_TRIES // 2))
    return _NGINX.format(servers=servers, read_ms=round(TIMEOUT_S * 1000), tries=N_TRIES, port=port)


def litellm_config(sims: Sequence[ServerProcess]) -> str:
    def deployment(group: str, url: str) -> dict[str, object]:
        return {"model_name": group, "litellm_params": {"model": f"openai/{MODEL}", "api_base": url, "api_key": "none",
                                                        "timeout": TIMEOUT_S, "stream_timeout": TIMEOUT_S}}

    models = [deployment(group, f"{sim.url}/litellm/v1") for group in (MODEL, "backup") for sim in sims]
    return json.dumps({
        "model_list": [*models, *(deployment("instant", f"{sim.url}/instant/v1") for sim in sims[:1])],
        "router_settings": {"num_retries": N_TRIES - 1, "retry_after": 0, "disable_cooldowns": True,
                            "fallbacks": [{MODEL: ["backup"]}]},
        "general_settings": {"master_key": KEY}})


async def start_all(stack: contextlib.AsyncExitStack, litellm: Path | None,
                    seed: int) -> tuple[list[Contender], list[ServerProcess]]:
    """Start the providers and the contenders."""
    processes = await stack.enter_async_context(Processes())
    folder = stack.enter_context(make_folder())
    names = [SDK, SDK_TUNED, NGINX, *([LITELLM] if litellm else []), STAYFAST]
    pair = heavy_tailed(seed).values()
    sims = [await processes.start_simulator(
        {**{name.replace(" ", "-"): config for name in names}, "instant": ProviderConfig("instant", fills_max_tokens=True)},
        seed) for config in pair]
    instant = f"{sims[0].url}/instant/v1"
    found = [Contender(name, f"{sims[0].url}/{name.replace(' ', '-')}/v1", instant) for name in (SDK, SDK_TUNED)]
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx:
        port = free_ports(1)[0]
        (folder / "nginx.conf").write_text(nginx_config(sims, port))
        await stack.enter_async_context(server([nginx, "-p", str(folder), "-c", "nginx.conf"], folder, port))
        found.append(Contender(NGINX, f"http://127.0.0.1:{port}/v1", f"http://127.0.0.1:{port}/instant/v1"))
    if litellm:
        port = free_ports(1)[0]
        (folder / "litellm.yaml").write_text(litellm_config(sims))
        command = [str(litellm / "bin" / "litellm"), "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)]
        await stack.enter_async_context(server(command, folder, port))
        found.append(Contender(LITELLM, f"http://127.0.0.1:{port}/v1", ""))
    settings = gateway_settings({name: f"{sim.url}/stayfast/v1" for name, sim in zip("ab", sims, strict=True)})
    settings["upstreams"]["instant"] = {**settings["upstreams"]["a"], "base_url": instant}
    settings["routes"]["instant"] = ["instant"]
    url = f"{(await processes.start_gateway(settings)).url}/v1"
    found.append(Contender(STAYFAST, url, ""))
    return found, sims


async def n_calls(sims: Sequence[ServerProcess], name: str) -> int:
    counts = [await sim.get("/_sim/counts") for sim in sims]
    return sum(count["providers"][name.replace(" ", "-")]["n_asked"] for count in counts)


async def measure_added(contenders: Sequence[Contender], direct: str, load: LoadSpec, seed: int, clock: Clock) -> None:
    """What each gateway adds to the p50, in turns of a second with the direct way."""
    targets = {}
    for name, url, model in [("direct", direct, MODEL), *((one.name, one.instant_url or one.url,
                                                           MODEL if one.instant_url else "instant")
                                                          for one in contenders if not one.name.startswith(SDK))]:
        spec = LoadSpec(load.seconds, load.rate_rps, n_output=2, model=model, key=KEY)
        targets[name] = HttpTarget(name, LoadTargetConfig(url, spec.request_config()), Prompts(seed), clock)
    results = await run_turns(targets, load, seed, clock)
    p50s = {name: read_waits(result).quantile_s(0.5) for name, result in results.items()}
    for one in contenders:
        one.added_s = p50s.get(one.name, nan) - p50s["direct"]


def print_table(contenders: Sequence[Contender], calls: Mapping[str, float]) -> None:
    columns = ("contender", "n", "p50", "p95", "p99 (rounds)", "past 2 s", "failed", "calls/request", "added p50")
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for one in contenders:
        spread = ExactDistribution(one.waits_s)
        values = " | ".join(format_seconds(spread.quantile(q)) for q in (0.5, 0.95))
        rounds = " ".join(format_seconds(value_s) for value_s in one.p99s_s)
        past = sum(wait_s > 2 for wait_s in one.waits_s) / len(one.waits_s)
        added = "" if one.added_s != one.added_s else f"{one.added_s * 1000:.1f} ms"
        p99, n_failed = format_seconds(spread.quantile(0.99)), sum(wait_s == inf for wait_s in one.waits_s)
        print(f"| {one.name} | {len(one.waits_s):,} | {values} | {p99} ({rounds}) | {past:.2%} | {n_failed} "
              f"| {calls[one.name]:.3f} | {added} |")


def draw(contenders: Sequence[Contender], about: Sequence[str]) -> str:
    """The SVG of the SDK alone and of Stayfast."""
    waits = {one.name: one.waits_s for one in contenders}
    words = Words("The same requests, without and with Stayfast", "Time to the first token, from the intended start", about)
    return picture(words, Line("straight to the provider", waits[SDK]), Line("Stayfast, nothing set", waits[STAYFAST]))


async def run(given: argparse.Namespace) -> None:
    clock = SystemClock()
    load = LoadSpec(given.seconds, given.rate, n_output=2, warmup_s=given.warmup, timeout_s=30.0, key=KEY)
    n_sent: dict[str, int] = {}
    async with contextlib.AsyncExitStack() as stack:
        contenders, sims = await start_all(stack, given.litellm, given.seed)
        contenders = [one for one in contenders if one.name in (given.only or (one.name,))]
        instant = LoadSpec(given.instant, given.rate, n_output=2, key=KEY, warmup_s=given.warmup)
        await measure_added(contenders, f"{sims[0].url}/instant/v1", instant, given.seed, clock)
        for number in range(given.rounds):
            seed = given.seed + number
            targets = {one.name: make_target(one, Prompts(seed), load, clock) for one in contenders}
            results = await run_turns(targets, load, seed, clock)
            for one in contenders:
                series = read_waits(results[one.name])
                one.waits_s += series.waits_s
                one.p99s_s.append(series.quantile_s(0.99))
                n_all = sum(1 for _ in generate_shots(load.plan(seed).workload, seed, load.plan(seed).limit))
                n_sent[one.name] = n_sent.get(one.name, 0) + n_all
                p50_s, p99_s = series.quantile_s(0.5), series.quantile_s(0.99)
                print(f"round {number + 1}: {one.name:9} p50 {p50_s:.3f} p99 {p99_s:.3f} s, n {series.n}, "
                      f"failed {series.n_failed}", *results[one.name].health.verdict, flush=True)
        calls = {one.name: await n_calls(sims, one.name) / n_sent[one.name] for one in contenders}
    machine = f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}"
    print(machine)
    print_table(contenders, calls)
    if given.out and not given.only:
        about = (("The providers of stayfast prove tail, each with p99 8 s, over sockets: one of them with the OpenAI SDK, "
                  "two through Stayfast."),
                 f"{len(contenders[0].waits_s):,} streams each at {given.rate:g}/s, {machine}: scripts/bench/tail_table.py")
        given.out.write_text(draw(contenders, about), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", type=Path, help="a virtual environment with litellm[proxy]")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these contenders, without a picture")
    parser.add_argument("--seconds", type=float, default=75.0, help="of each contender in each round")
    parser.add_argument("--warmup", type=float, default=10.0)
    parser.add_argument("--instant", type=float, default=15.0, help="seconds at the instant upstream")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to draw the picture")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
