"""A shop's help desk: what it is asked, providers that know its articles, and visitors at the whole pipeline.

    again   one of the desk's tasks, the popular more often (Zipf); each is said with one of three verbs, one of three nouns,
            in one of 25 frames, with a greeting or a courtesy or neither: 22,500 wordings a task
    once    about one product of many thousands, and what it does in somebody's home; one in NEAR is a task after all, but in
            a case of its own, so that its answer is another one. That is where a cache errs

Each question has an article that answers it; the article's number in an answer shows for which question it was made.

In virtual time vectors are made beforehand, by the model that a gateway uses, as a computation takes no virtual time. A
look-up is charged EMBED_S for one instead, which is what a short text takes on a machine that is not idle.

As a program it is `stayfast sim` with such providers, at `{url}/NAME`: `python -m stayfast.lab.workloads.support_desk FILE
SEED`, a file of questions and their articles as JSON.
"""

import asyncio
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import accumulate
from math import inf, nan
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import uvloop

from stayfast.core.clock import Clock, SystemClock
from stayfast.core.errors import StayfastError
from stayfast.core.types import Api
from stayfast.http.server.connection import ServerConnection
from stayfast.lab.harness.claim import SetUpFailed
from stayfast.lab.harness.load import LONG_S, LoadSpec, ask
from stayfast.lab.harness.processes import Processes
from stayfast.lab.harness.virtual import HEAVY_TAIL, read, simulated
from stayfast.lab.load.lengths import FillerText
from stayfast.lab.load.result import Result
from stayfast.lab.load.schedule import Prompts, Shot
from stayfast.lab.load.stats import Exact
from stayfast.lab.load.virtual import virtual
from stayfast.lab.sim_server.answer import AnswerRun, SimRequest
from stayfast.lab.sim_server.app import ListenConfig, Site, signalled
from stayfast.lab.simulated import (
    Answering,
    GapConfig,
    PromptCacheModel,
    Provider,
    ProviderConfig,
    SimulatedRequest,
    Tariff,
    ask_of,
)
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.lab.workloads.memory import MemoryEmbedder, cache_result
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.settings import RouteSettings, Settings, environment
from stayfast.settings.environment import cache_home
from stayfast.stores.embedder import HOW_TO, EmbedderConfig, NoEmbedder
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import Call
from stayfast.wire.json_input import decode

if TYPE_CHECKING:
    from stayfast.stores.embedder import Floats

_TASKS: Final = tuple((tuple(does.split("/")), tuple(what.split("/"))) for does, what in (line.split(" | ") for line in """
cancel/call back/withdraw | an order/a purchase/something I have ordered
return/send back/bring back | a faulty article/damaged goods/a broken item
track/follow/locate | a parcel/a package/a shipment
change/edit/correct | the delivery address/the shipping address/the address for deliveries
reset/recover/renew | a forgotten password/a lost password/the login password
redeem/use/cash in | a gift card/a voucher/a gift certificate
print/get a paper copy of/reprint | an invoice/a bill/a receipt
book/reserve/arrange | an assembly service/a fitter for furniture/somebody who assembles furniture
join/become a member of/sign up for | the loyalty programme/the bonus club/the points scheme
pay in instalments for/finance/spread the payments for | a large purchase/an expensive item/a big order
delete/erase/close | a customer account/a user profile/an online account
subscribe to/get/receive | the newsletter/the mailing list/your news by mail
rent/hire/borrow | a van/a transporter/a delivery truck
recycle/dispose of/hand in | an old mattress/a used mattress/a worn mattress
order/request/get | samples of fabric/swatches of cloth/textile samples
measure/take the size of/find the dimensions of | a window for curtains/a window for blinds/a window for drapes
claim/make use of/invoke | the warranty/the guarantee/the manufacturer's guarantee
download/get a copy of/find | an assembly manual/the building instructions/the instructions for assembly
replace/get a new one of/order again | a missing screw/lost screws/screws that were missing in the box
contact/reach/speak to | the customer service/a support agent/somebody at the hotline
pick up/collect/fetch | goods at the store/an order in the shop/a click and collect order
check/look up/find out | the opening hours/the business hours/the hours of the store
write/post/publish | a product review/a rating/an opinion of a product
apply for/look for/get | a job/a vacancy/employment at your company
sharpen/grind/whet | kitchen knives/a chef's knife/blunt knives
have dyed/have coloured/get tinted | wall paint/a bucket of paint/paint in a special shade
get permission for/register/bring | a dog in the store/a pet in the shop/an assistance dog
plan/design/draw | a fitted kitchen/a new kitchen/a kitchen layout
attend/take part in/enrol in | a course for welding/a welding class/a workshop on welding
insure/protect/get cover for | a bicycle/a bike/an electric bike
park/leave/charge | an electric car/a battery car/an electric vehicle
translate/switch/set | the language of the website/the language of the app/the site's language
clean/wash/get stains out of | a wool carpet/a woollen rug/a rug of wool
donate/give away/offer | furniture to charity/furniture to a good cause/sofas to a charity
split/divide/share | a payment among friends/the sum with friends/a payment between several cards
verify/confirm/prove | an email address/a mail account/the address of an inbox
block/report/freeze | a stolen store card/a lost store card/a missing store card
exchange/swap/trade | foreign money/currency/dollars for euros
repair/mend/fix | a leaking tap/a dripping tap/a faucet that leaks
breed/keep/raise | bees on a balcony/honey bees at home/a bee hive in the garden
""".strip().splitlines()))
_FRAMES: Final = (
    "how do I {}?", "how can I {}?", "what is the way to {}?", "I want to {}.", "please tell me how to {}.",
    "can you help me to {}?", "I need to {}.", "is it possible to {}?", "where do I go to {}?", "what are the steps to {}?",
    "I would like to {}.", "what must I do to {}?", "trying to {}, how does that work?", "could you explain how to {}?",
    "what does it take to {}?", "am I able to {}?", "which button do I press to {}?", "show me how to {}.",
    "is there a way to {}?", "I have to {}.", "how does one {}?", "what should I do if I want to {}?", "help me {}.",
    "tell me what I need in order to {}.", "I am looking for a way to {}.")
_GREETINGS: Final = ("", "", "", "", "", "hi, ", "hello, ", "good day, ", "quick question: ", "dear team, ")
_COURTESIES: Final = ("", "", "", "", "", " thanks", " thank you", " please", " cheers", " kind regards")
_CASES: Final = (
    "that my late father left", "that belongs to a company abroad", "that a court has frozen", "won in a raffle",
    "that the flood has ruined", "from the shop you have closed", "bought with a stolen card", "for my former wife",
    "made under another name", "that is part of a bankruptcy", "for a school on an island", "that a child made by mistake")
_KINDS: Final = (
    "walnut", "steel", "bamboo", "copper", "linen", "oak", "glass", "marble", "leather", "canvas", "cork", "rattan",
    "ceramic", "brass", "wool", "granite", "velvet", "birch", "slate", "aluminium", "teak", "felt", "concrete", "acrylic")
_PRODUCTS: Final = (
    "bookshelf", "kettle", "desk lamp", "garden hose", "tool box", "shower curtain", "hammock", "wheelbarrow", "coat rack",
    "mirror", "drill", "ladder", "rug", "bench", "planter", "grill", "mailbox", "door handle", "sink", "stool", "fence",
    "wardrobe", "toaster", "birdhouse", "workbench", "chandelier", "radiator", "awning", "dehumidifier", "sandpit",
    "water pump", "letter opener", "clothes horse", "bread bin", "fire screen", "paint roller")
_ASPECTS: Final = (
    "fit beside a {} window", "stand the winter on a {} balcony", "hold the weight of a {} aquarium",
    "match the floor of a {} kitchen", "come apart for a {} staircase", "keep its colour in {} sunlight",
    "work in a {} cellar", "make noise in a {} flat", "need screws for a {} wall", "smell when left in a {} room",
    "survive a {} puppy", "go with a {} sofa")
_SORTS: Final = (
    "narrow", "damp", "victorian", "noisy", "rented", "sloping", "tiny", "crooked", "southern", "draughty", "converted",
    "plastered", "rooftop", "unfinished", "wooden", "heated", "shared", "green", "wide", "northern", "listed", "tiled",
    "vaulted", "whitewashed")
_STRIDE: Final = 100_003  # prime: another question each time, a quarter of a million times, and neighbours unlike
NEAR: Final = 50
AGAIN: Final = 0.4
PASTED: Final = 0.3
N_STATIC: Final = 1200  # words of the system prompt, each a token
N_PASTED: Final = 2600
BELOW: Final = "\n\n"  # between a question and the text that is pasted below it
_MORE: Final = "Open it, follow it from the top, and come back to us if anything in it is not as you see it. " * 5


class DeskQuestion(NamedTuple):
    """One question, and the number of its article: the same for all that have the same answer."""

    text: str
    article: int


class QuestionSource:
    """Draws questions; all by `rng`. again: the wordings of each task, where they are not to be made up."""

    def __init__(self, rng: Random, again: Sequence[Sequence[str]] = ()) -> None:
        self._rng = rng
        self._again = again
        self.n_tasks = len(again) or len(_TASKS)
        self._order = rng.sample(range(self.n_tasks), self.n_tasks)  # the popular first
        self._weights = list(accumulate(1 / rank for rank in range(1, self.n_tasks + 1)))
        self._n_once = 0
        self._mix = rng.randrange(1_000_000)

    def again(self) -> DeskQuestion:
        """A task in some words. Numbers of tasks are below `n_tasks`, those of others are not."""
        rng = self._rng
        [task] = rng.choices(self._order, cum_weights=self._weights)
        return DeskQuestion(rng.choice(self._again[task]) if self._again else self._phrase(_TASKS[task]), task)

    def once(self) -> DeskQuestion:
        self._n_once += 1
        article = self.n_tasks + self._n_once
        n_near, rest = divmod(self._n_once, NEAR)
        if rest == 0:
            task, case, sort = _digits(n_near, _TASKS, _CASES, _SORTS)
            return DeskQuestion(self._phrase(task, f" {case}, for a {sort} house"), article)
        kind, product, aspect, sort = _digits(self._n_once * _STRIDE + self._mix, _KINDS, _PRODUCTS, _ASPECTS, _SORTS)
        return DeskQuestion(f"Does the {kind} {product} {aspect.format(sort)}?", article)

    def _phrase(self, task: Sequence[Sequence[str]], case: str = "") -> str:
        rng = self._rng
        does, what = (rng.choice(words) for words in task)
        text = rng.choice(_GREETINGS) + rng.choice(_FRAMES).format(f"{does} {what}{case}") + rng.choice(_COURTESIES)
        return text[0].upper() + text[1:]


def _digits(number: int, *lists: Sequence[Any]) -> list[Any]:
    """One of each list: another choice for each number, until there are no others."""
    found = []
    for choices in lists:
        number, at = divmod(number, len(choices))
        found.append(choices[at])
    return found


def answer_of(article: int) -> str:
    return f"Article {article} of our pages tells you, step by step, what to do. {_MORE}"


class Visit(NamedTuple):
    """One request. pasted: the number of a text that comes with the question, and makes the request its own; None: none."""

    text: str
    article: int
    is_again: bool
    pasted: int | None = None


def visits(desk: QuestionSource, rng: Random, n: int) -> list[Visit]:
    """AGAIN of them ask what comes again, PASTED come with a text, and all others ask something short of their own."""
    found = []
    for number in range(n):
        luck = rng.random()
        question = desk.again() if luck < AGAIN else desk.once()
        found.append(Visit(*question, is_again=luck < AGAIN, pasted=number if AGAIN <= luck < AGAIN + PASTED else None))
    return found


class DeskPrompts:
    """The texts of requests: all begin with the same instructions."""

    def __init__(self, seed: int) -> None:
        self._book = FillerText(seed)
        self.system = self._book.passage(0, N_STATIC)

    def message(self, visit: Visit) -> str:
        """The user's message: the question, and the text that is pasted below it."""
        if visit.pasted is None:
            return visit.text
        return visit.text + BELOW + self._book.passage(visit.pasted, N_PASTED)


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
    return ProviderConfig(seed=2 * seed + number, ttft=HEAVY_TAIL, gaps=GapConfig(0.0, 0.0, _TOKENS_A_CHUNK),
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

    def ask(self, ask: SimulatedRequest) -> Answering:
        return super().ask(msgspec.structs.replace(ask, value=self._answer))


class _DeskSite(Site):
    """A simulator of such providers."""

    def __init__(self, articles: Mapping[str, int], seed: int) -> None:
        super().__init__(ListenConfig(port=0), {name: provider(number, seed) for number, name in enumerate(NAMES)},
                         SystemClock(), _report)
        self._articles = articles

    def _ask(self, connection: ServerConnection[SimRequest], request: SimRequest, name: str,
             api: Api) -> Coroutine[Any, Any, None]:
        provider = self._providers[name]
        ask = ask_of(decode(api, request.body), cache_rules=provider.cache_rules)
        answer = answer_of(self._articles[question_in(request.body)])
        return AnswerRun(provider, msgspec.structs.replace(ask, value=answer), connection, request, self._state).run()


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


EMBED_S: Final = 0.003
ROUTE: Final = "desk"
_N_AT_ONCE: Final = 64  # texts in a batch
_REPORT_EVERY: Final = 10_000
_encode = msgspec.json.Encoder().encode


def embedder_of(rows: Mapping[str, "Floats"], embedder: str) -> MemoryEmbedder:
    """An embedder of texts that are known beforehand."""
    return MemoryEmbedder(embedder, len(next(iter(rows.values()))), rows.__getitem__, EMBED_S)


def prepare_embedder(visits: Sequence[Visit], report_progress: Callable[[str], None]) -> MemoryEmbedder:
    """The vectors of all short questions. Raises SetUpFailed where there is no model."""
    try:
        model = import_module("stayfast.stores.onnx_embedder").load(EmbedderConfig(), str(cache_home(environment())))
    except (ImportError, NoEmbedder) as missing:
        raise SetUpFailed(f"nothing can be asked in other words: {missing}; {HOW_TO}") from missing
    texts = list({visit.text: None for visit in visits if visit.pasted is None})
    rows: dict[str, Floats] = {}
    for first in range(0, len(texts), _REPORT_EVERY):
        report_progress(f"{first:,} of {len(texts):,} questions embedded")
        part = texts[first:first + _REPORT_EVERY]
        rows |= zip(part, model.embed_all(part, _N_AT_ONCE), strict=True)
    return embedder_of(rows, model.id)


@dataclass(slots=True)
class Outcomes:
    """What became of the visits that count. waits_s: to the first token, infinite where there was none. by_kind: visits by
    the cache's result (hit, semantic, coalesced, miss); wrong: answered by another question's article; again: questions that
    come again. usd, calls and tokens are the providers' own accounts.
    """

    waits_s: "array[float]" = field(default_factory=lambda: array("d"))
    by_kind: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    n_failed: int = 0
    n_calls: int = 0
    n_prompted: int = 0  # tokens
    n_cached: int = 0
    usd: float = 0.0

    @property
    def n(self) -> int:
        return len(self.waits_s)

    @property
    def past(self) -> float:
        return sum(wait_s > LONG_S for wait_s in self.waits_s) / self.n if self.n else nan

    def at(self, shares: Sequence[float]) -> list[float]:
        exact = Exact(self.waits_s)
        return [exact.at(share) for share in shares]

    def count(self, providers: Sequence[DeskProvider], sign: int) -> None:
        """Add (or take away) what providers have counted so far."""
        for counts in [each.counts for each in providers]:
            self.n_calls += sign * counts.n_asked
            self.n_prompted += sign * counts.n_tokens_prompted
            self.n_cached += sign * counts.n_tokens_cached
            self.usd += sign * counts.cost_usd


async def visit_in_virtual_time(loop: SimLoop, visits: Sequence[Visit], n_warm: int, route: Mapping[str, Any], *,
                                rate_rps: float, seed: int, embedder: MemoryEmbedder | None = None) -> Outcomes:
    """All visits, Poisson at a rate, the first `n_warm` uncounted, at a gateway whose route has these settings."""
    system = virtual(Settings(
        upstreams={name: SimulatedUpstream(provider=provider(number, seed), probe=False)
                   for number, name in enumerate(NAMES)},
        routes={ROUTE: RouteSettings(NAMES, model=MODEL, **route)}), loop, seed)
    articles = {visit.text: visit.article for visit in visits}
    providers = [DeskProvider(name, provider(number, seed), loop, articles) for number, name in enumerate(NAMES)]
    for each in providers:
        upstream = simulated(system, each.name)
        upstream.provider, upstream.number_of = each, each.number_of
    if system.embedding is not None:
        system.embedding.ahead = system.embedding.behind = embedder
    rng, outcomes = Random(seed), Outcomes()
    visitors = _Visitors(system.gateway, loop, DeskPrompts(seed), outcomes)
    at = loop.now()
    async with asyncio.TaskGroup() as group:
        for number, visit in enumerate(visits):
            at += rng.expovariate(rate_rps)
            await asyncio.sleep(at - loop.now())
            if number == n_warm:
                outcomes.count(providers, -1)
            group.create_task(visitors.visit(number, visit, counts=number >= n_warm))
    outcomes.count(providers, 1)
    return outcomes


class _Visitors:
    """Send requests, and judge the answers."""

    def __init__(self, gateway: Gateway, loop: SimLoop, prompts: DeskPrompts, outcomes: Outcomes) -> None:
        self._gateway = gateway
        self._loop = loop
        self._prompts = prompts
        self._outcomes = outcomes
        self._opening = b'{"model":%b,"stream":true,"temperature":0,"max_tokens":%d,"system":%b,"messages":' % (
            _encode(ROUTE), MAX_OUTPUT, _encode(prompts.system))

    async def visit(self, number: int, visit: Visit, *, counts: bool) -> None:
        body = self._opening + _encode([{"role": "user", "content": self._prompts.message(visit)}]) + b"}"
        loop, outcomes = self._loop, self._outcomes
        began_at = loop.now()
        try:
            reply = await self._gateway.serve(decode(Api.MESSAGES, body), Arrival(f"req_{number:x}", began_at))
            wait_s = loop.now() - began_at
            answer = await read(reply)
        except StayfastError:
            wait_s, kind, is_right = inf, "failed", True
        else:
            kind = cache_result(reply.cache)
            is_right = b"Article %d of" % visit.article in answer
        if counts:
            outcomes.waits_s.append(wait_s)
            outcomes.n_failed += kind == "failed"
            outcomes.by_kind[kind] += 1
            outcomes.wrong[kind] += not is_right
            outcomes.again[kind] += visit.is_again


class DeskVisits(NamedTuple):
    """The visits over sockets that count, and what the providers charged for them."""

    result: Result
    n: int
    usd: float


class _VisitPrompts(Prompts):
    """Visits as the bench's prompts, the first shot with the `first` of them."""

    def __init__(self, prompts: DeskPrompts, visits: Sequence[Visit], first: int) -> None:
        self.system = prompts.system
        self._prompts = prompts
        self._visits = visits
        self._first = first

    def dialogue(self, shot: Shot) -> list[tuple[str, str]]:
        return [("user", self._prompts.message(self._visits[(self._first + shot.number) % len(self._visits)]))]


async def visit_over_sockets(visits: Sequence[Visit], route: Mapping[str, Any], rate_rps: float, *, warmup_s: float,
                             seconds: float, seed: int) -> DeskVisits:
    """Ask a gateway with this route, for `warmup_s` unmeasured. Raises SetUpFailed."""
    prompts = DeskPrompts(seed)
    async with Processes() as processes:
        articles = processes.written({visit.text: visit.article for visit in visits})
        sim = await processes.start("-m", "stayfast.lab.workloads.support_desk", articles, str(seed))
        gateway = await processes.gateway({
            "upstreams": {name: {"kind": "anthropic", "base_url": f"{sim.url}/{name}", "key": "none", "probe": False}
                          for name in NAMES},
            "routes": {ROUTE: {"upstreams": list(NAMES), "model": MODEL, **route}}})

        async def put(seconds: float, first: int, seed: int) -> Result:
            load = LoadSpec(seconds, rate_rps, n_input=1, n_output=MAX_OUTPUT, api=Api.MESSAGES, model=ROUTE,
                        extra={"temperature": 0})
            return (await ask(load, {"gateway": gateway.url}, seed, _VisitPrompts(prompts, visits, first)))["gateway"]

        async def charged_usd() -> float:
            counts = await sim.get("/_sim/counts")
            return sum([float(provider["cost_usd"]) for provider in counts["providers"].values()])

        n_before = len((await put(warmup_s, 0, seed)).samples)
        before_usd = await charged_usd()
        result = await put(seconds, n_before, seed + 1)
        return DeskVisits(result, len(result.samples), await charged_usd() - before_usd)
