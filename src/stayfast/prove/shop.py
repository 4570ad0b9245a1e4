"""What the desk's visitors say, and providers that answer them: simulated ones that know the desk's articles.

As a program it is `stayfast sim` with such providers, at `{url}/NAME`: `python -m stayfast.prove.shop FILE SEED`, a file of
questions and their articles as JSON.
"""

import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from stayfast.bench.words import Book
from stayfast.core.clock import Clock, SystemClock
from stayfast.core.types import Api
from stayfast.http.server.connection import Connection
from stayfast.prove.desk import Visit, answer_of
from stayfast.prove.tail import MIXTURE
from stayfast.sim.answer import Answer
from stayfast.sim.config import ListenConfig
from stayfast.sim.request import SimRequest
from stayfast.sim.signals import signalled
from stayfast.sim.site import Site
from stayfast.upstreams.base import Call
from stayfast.upstreams.simulated import (
    Answering,
    Ask,
    Gaps,
    PromptCacheModel,
    Provider,
    ProviderConfig,
    Tariff,
    ask_of,
)
from stayfast.wire.decode import decode

NAMES: Final = ("a", "b")
MODEL: Final = "claude-sonnet-4-6"
N_STATIC: Final = 1200  # words of the system prompt, each a token
N_PASTED: Final = 2600
N_MOST: Final = 1024  # tokens that an answer may have
_APART: Final = "\n\n"
_TARIFF: Final = Tariff(3.0, 15.0)
_TOKENS_A_CHUNK: Final = 64
_BODY: Final = msgspec.json.Decoder(dict[str, Any])


class Said:
    """What visitors say: all begin with the same instructions."""

    def __init__(self, seed: int) -> None:
        self._book = Book(seed)
        self.system = self._book.passage(0, N_STATIC)

    def by(self, visit: Visit) -> str:
        """The user's message: the question, and what is pasted below it."""
        if visit.pasted is None:
            return visit.text
        return visit.text + _APART + self._book.passage(visit.pasted, N_PASTED)


def question_in(body: bytes) -> str:
    """What was asked, of a request in Anthropic's dialect. Its content is a text, or blocks where it was marked."""
    said = _BODY.decode(body)["messages"][-1]["content"]
    text: str = said if isinstance(said, str) else said[0]["text"]
    return text.partition(_APART)[0]


def provider(number: int, seed: int) -> ProviderConfig:
    """One of the two of `prove.tail`, with Anthropic's rules for what prompts begin with, and output at five times input."""
    return ProviderConfig(seed=2 * seed + number, ttft=MIXTURE, gaps=Gaps(0.0, 0.0, _TOKENS_A_CHUNK),
                          prompt_cache=PromptCacheModel(), tariff=_TARIFF)


class Knowing(Provider):
    """In place of the provider of a `Simulated`, whose `number_of` tells it what it is about to be asked."""

    def __init__(self, name: str, config: ProviderConfig, clock: Clock, articles: Mapping[str, int]) -> None:
        super().__init__(name, config, clock)
        self._articles = articles
        self._n_heard = 0
        self._answer = ""

    def hear(self, call: Call) -> int:
        """The question of the call that comes next, and the dice for it."""
        self._answer = answer_of(self._articles[question_in(call.request.body)])
        self._n_heard += 1
        return self._n_heard

    def ask(self, ask: Ask) -> Answering:
        """See `Provider`."""
        return super().ask(msgspec.structs.replace(ask, value=self._answer))


class _Shop(Site):
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
    shop = _Shop(articles, seed)
    with signalled() as has_come:
        sys.stdout.write(f"http://127.0.0.1:{await shop.listen()}\n")
        sys.stdout.flush()
        await has_come.wait()
    shop.close()


if __name__ == "__main__":
    uvloop.run(_serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=dict[str, int]), int(sys.argv[2])))
