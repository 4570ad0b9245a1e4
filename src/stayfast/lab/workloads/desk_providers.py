"""Simulated providers that know the support desk's articles.

As a program it is `stayfast sim` with such providers, at `{url}/NAME`: `python -m stayfast.lab.workloads.desk_providers FILE
SEED`, a file of questions and their articles as JSON.
"""

import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from stayfast.core.clock import Clock, SystemClock
from stayfast.core.types import Api
from stayfast.http.server.connection import Connection
from stayfast.lab.harness.hedging_runs import HEAVY_TAIL
from stayfast.lab.sim_server.answer import Answer, SimRequest
from stayfast.lab.sim_server.app import ListenConfig, Site, signalled
from stayfast.lab.simulated import Answering, Ask, Gaps, PromptCacheModel, Provider, ProviderConfig, Tariff, ask_of
from stayfast.lab.workloads.support_desk import BELOW, answer_of
from stayfast.upstreams.base import Call
from stayfast.wire.json_input import decode

NAMES: Final = ("a", "b")
MODEL: Final = "claude-sonnet-4-6"
MAX_OUTPUT: Final = 1024  # tokens that an answer may have
_TARIFF: Final = Tariff(3.0, 15.0)
_TOKENS_A_CHUNK: Final = 64
_BODY: Final = msgspec.json.Decoder(dict[str, Any])


def question_in(body: bytes) -> str:
    """The question of a request in Anthropic's dialect. Its content is a text, or blocks where it was marked."""
    content = _BODY.decode(body)["messages"][-1]["content"]
    text: str = content if isinstance(content, str) else content[0]["text"]
    return text.partition(BELOW)[0]


def provider(number: int, seed: int) -> ProviderConfig:
    """One of the two: a heavy tail, Anthropic's rules for cached prompts, and output at five times the price of input."""
    return ProviderConfig(seed=2 * seed + number, ttft=HEAVY_TAIL, gaps=Gaps(0.0, 0.0, _TOKENS_A_CHUNK),
                          prompt_cache=PromptCacheModel(), tariff=_TARIFF)


class DeskProvider(Provider):
    """In place of the provider of a `Simulated`, whose `number_of` announces each call."""

    def __init__(self, name: str, config: ProviderConfig, clock: Clock, articles: Mapping[str, int]) -> None:
        super().__init__(name, config, clock)
        self._articles = articles
        self._n_calls = 0
        self._answer = ""

    def number_of(self, call: Call) -> int:
        """Note the question of the call that comes next; returns the number of its dice."""
        self._answer = answer_of(self._articles[question_in(call.request.body)])
        self._n_calls += 1
        return self._n_calls

    def ask(self, ask: Ask) -> Answering:
        return super().ask(msgspec.structs.replace(ask, value=self._answer))


class _DeskSite(Site):
    """A simulator of such providers."""

    def __init__(self, articles: Mapping[str, int], seed: int) -> None:
        super().__init__(ListenConfig(port=0), {name: provider(number, seed) for number, name in enumerate(NAMES)},
                         SystemClock(), _report)
        self._articles = articles

    def _ask(self, connection: Connection[SimRequest], request: SimRequest, name: str,
             api: Api) -> Coroutine[Any, Any, None]:
        its = self._providers[name]
        ask = ask_of(decode(api, request.body), cache_rules=its.cache_rules)
        answer = answer_of(self._articles[question_in(request.body)])
        return Answer(its, msgspec.structs.replace(ask, value=answer), connection, request, self._desk).run()


def _report(error: BaseException) -> None:
    sys.stderr.write(f"{type(error).__name__}\n")


async def _serve(articles: Mapping[str, int], seed: int) -> None:
    site = _DeskSite(articles, seed)
    with signalled() as has_come:
        sys.stdout.write(f"http://127.0.0.1:{await site.listen()}\n")
        sys.stdout.flush()
        await has_come.wait()
    site.close()


if __name__ == "__main__":
    uvloop.run(_serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=dict[str, int]), int(sys.argv[2])))
