"""A shop's help desk: its questions, providers that know its articles, and visitors that send the questions to a gateway.

    repeated   one of the desk's tasks, popular ones more often (Zipf), with one of three verbs, three nouns and 25 frames,
               and sometimes a greeting or a courtesy: 22,500 wordings per task
    unique     a question about one product of many thousands. One in NEAR is a task in a special case, with an answer of
               its own; these are the questions on which a semantic cache errs

Each question has an article with its answer, which the providers word anew in each call (`support_answers`).

Computation takes no virtual time, so in virtual time the vectors are computed beforehand, by the model that a gateway uses,
and each look-up takes EMBED_S, which is the time for a short text on a busy machine.

As a program it is `stayfast sim` with such providers, at `{url}/NAME`: `python -m stayfast.lab.workloads.support_desk FILE
SEED`, where FILE is a JSON object of questions and their articles.
"""

import asyncio
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import uvloop

from stayfast.core.clock import Clock, SystemClock
from stayfast.core.errors import StayfastError
from stayfast.core.types import Api
from stayfast.http.server.connection import ServerConnection
from stayfast.lab.harness.load import LONG_S, LoadSpec, run_load
from stayfast.lab.harness.processes import Processes
from stayfast.lab.harness.virtual import HEAVY_TAIL, seed_provider, serve_and_read, simulated_upstream
from stayfast.lab.harness.waits import N_BATCHES
from stayfast.lab.load.lengths import FillerText
from stayfast.lab.load.result import Result
from stayfast.lab.load.schedule import Prompts, Shot
from stayfast.lab.load.stats import ExactDistribution
from stayfast.lab.load.virtual import build_virtual_system
from stayfast.lab.sim_server.answer import AnswerRun, SimRequest
from stayfast.lab.sim_server.app import ListenConfig, SimulatorApp, stop_on_signals
from stayfast.lab.simulated import (
    GapConfig,
    PromptCacheModel,
    Provider,
    ProviderConfig,
    SimulatedCall,
    SimulatedRequest,
    Tariff,
    to_simulated_request,
)
from stayfast.lab.simulated.settings import SimulatedUpstream
from stayfast.lab.workloads.in_memory import MemoryEmbedder, cache_result, load_embedder
from stayfast.lab.workloads.support_answers import SEPARATOR, DeskModel, read_article
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.gateway import Gateway
from stayfast.settings import RouteSettings, Settings
from stayfast.testing.simloop import SimLoop
from stayfast.upstreams.base import Call
from stayfast.wire.request_body import decode

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
_STRIDE: Final = 100_003  # prime: a quarter of a million distinct questions, of which consecutive ones differ clearly
NEAR: Final = 50
REPEATED: Final = 0.4  # share of the visits
PASTED: Final = 0.3
N_STATIC: Final = 1200  # words of the system prompt; one word is one token
N_PASTED: Final = 2600


class DeskQuestion(NamedTuple):
    """A question and the number of its article. Questions with the same answer have the same article."""

    text: str
    article: int


class QuestionSource:
    """Draws random questions. wordings: of each task; empty: they are generated."""

    def __init__(self, rng: Random, wordings: Sequence[Sequence[str]] = ()) -> None:
        self._rng = rng
        self._wordings = wordings
        self.n_tasks = len(wordings) or len(_TASKS)
        self._order = rng.sample(range(self.n_tasks), self.n_tasks)  # by popularity
        self._weights = list(accumulate(1 / rank for rank in range(1, self.n_tasks + 1)))
        self._n_unique = 0
        self._mix = rng.randrange(1_000_000)

    def draw_repeated(self) -> DeskQuestion:
        """A wording of a task. Articles of tasks are below `n_tasks`."""
        rng = self._rng
        [task] = rng.choices(self._order, cum_weights=self._weights)
        return DeskQuestion(rng.choice(self._wordings[task]) if self._wordings else self._phrase_task(_TASKS[task]), task)

    def draw_unique(self) -> DeskQuestion:
        self._n_unique += 1
        article = self.n_tasks + self._n_unique
        n_near, rest = divmod(self._n_unique, NEAR)
        if rest == 0:
            task, case, sort = _choose_by_digits(n_near, _TASKS, _CASES, _SORTS)
            return DeskQuestion(self._phrase_task(task, f" {case}, for a {sort} house"), article)
        number = self._n_unique * _STRIDE + self._mix
        kind, product, aspect, sort = _choose_by_digits(number, _KINDS, _PRODUCTS, _ASPECTS, _SORTS)
        return DeskQuestion(f"Does the {kind} {product} {aspect.format(sort)}?", article)

    def _phrase_task(self, task: Sequence[Sequence[str]], case: str = "") -> str:
        rng = self._rng
        does, what = (rng.choice(words) for words in task)
        text = rng.choice(_GREETINGS) + rng.choice(_FRAMES).format(f"{does} {what}{case}") + rng.choice(_COURTESIES)
        return text[0].upper() + text[1:]


def _choose_by_digits(number: int, *lists: Sequence[Any]) -> list[Any]:
    """One item of each list, selected by the digits of a mixed-radix number."""
    chosen = []
    for choices in lists:
        number, at = divmod(number, len(choices))
        chosen.append(choices[at])
    return chosen


class Visit(NamedTuple):
    """One request. pasted: the number of a text after the question, which makes the request unique; None: no text."""

    text: str
    article: int
    is_repeated: bool
    pasted: int | None = None


def draw_visits(source: QuestionSource, rng: Random, n: int) -> list[Visit]:
    """A share of REPEATED are repeated questions, a share of PASTED include a text, the rest are unique questions."""
    visits = []
    for number in range(n):
        luck = rng.random()
        question = source.draw_repeated() if luck < REPEATED else source.draw_unique()
        pasted = number if REPEATED <= luck < REPEATED + PASTED else None
        visits.append(Visit(*question, is_repeated=luck < REPEATED, pasted=pasted))
    return visits


class DeskPrompts:
    """The texts of requests, which share their instructions."""

    def __init__(self, seed: int) -> None:
        self._book = FillerText(seed)
        self.system = self._book.make_passage(0, N_STATIC)

    def message(self, visit: Visit) -> str:
        """The user's message: the question, and the pasted text."""
        if visit.pasted is None:
            return visit.text
        return visit.text + SEPARATOR + self._book.make_passage(visit.pasted, N_PASTED)


NAMES: Final = ("a", "b")
MODEL: Final = "claude-sonnet-4-6"
MAX_OUTPUT: Final = 1024  # tokens
_TARIFF: Final = Tariff(3.0, 15.0)
_TOKENS_PER_CHUNK: Final = 64


def make_provider(number: int, seed: int) -> ProviderConfig:
    """Heavy tail, Anthropic's prompt-cache rules, output at five times the price of input."""
    config = ProviderConfig(seed=number, ttft=HEAVY_TAIL, gaps=GapConfig(0.0, 0.0, _TOKENS_PER_CHUNK),
                            prompt_cache=PromptCacheModel(), tariff=_TARIFF)
    return seed_provider(config, seed)


class DeskProvider(Provider):
    """Replaces the provider of a `Simulated`, which calls `number_of` before each call."""

    def __init__(self, name: str, config: ProviderConfig, clock: Clock, model: DeskModel) -> None:
        super().__init__(name, config, clock)
        self._model = model
        self._n_calls = 0
        self._answer = ""

    def number_of(self, call: Call) -> int:
        """Word the answer of the next call. Returns the number of its random draws."""
        self._answer = self._model.reply_to(call.request.body)
        self._n_calls += 1
        return self._n_calls

    def start_call(self, request: SimulatedRequest) -> SimulatedCall:
        return super().start_call(msgspec.structs.replace(request, value=self._answer))


class _DeskSite(SimulatorApp):
    """A simulator with help-desk providers."""

    def __init__(self, articles: Mapping[str, int], seed: int) -> None:
        super().__init__(ListenConfig(port=0), {name: make_provider(number, seed) for number, name in enumerate(NAMES)},
                         SystemClock(), _report)
        self._model = DeskModel(articles, seed)

    def _start_answer(self, connection: ServerConnection[SimRequest], request: SimRequest, name: str,
             api: Api) -> Coroutine[Any, Any, None]:
        provider = self._providers[name]
        simulated_request = to_simulated_request(decode(api, request.body), cache_rules=provider.cache_rules)
        answer = msgspec.structs.replace(simulated_request, value=self._model.reply_to(request.body))
        return AnswerRun(provider, answer, connection, request, self._state).run()


def _report(error: BaseException) -> None:
    sys.stderr.write(f"{type(error).__name__}\n")


async def _serve(articles: Mapping[str, int], seed: int) -> None:
    site = _DeskSite(articles, seed)
    with stop_on_signals() as stop:
        sys.stdout.write(f"http://127.0.0.1:{await site.listen()}\n")
        sys.stdout.flush()
        await stop.wait()
    site.close()


EMBED_S: Final = 0.003
BATCH_S: Final = 5.0
ROUTE: Final = "desk"
_BATCH_SIZE: Final = 64  # texts
_REPORT_EVERY: Final = 10_000
_encode = msgspec.json.Encoder().encode


def make_embedder(vectors: Mapping[str, "Floats"], model_id: str) -> MemoryEmbedder:
    """An embedder with precomputed vectors."""
    return MemoryEmbedder(model_id, len(next(iter(vectors.values()))), vectors.__getitem__, EMBED_S)


def prepare_embedder(visits: Sequence[Visit], report_progress: Callable[[str], None]) -> MemoryEmbedder:
    """Compute the vectors of all short questions. Raises SetUpFailed without a model."""
    model = load_embedder()
    texts = list({visit.text: None for visit in visits if visit.pasted is None})
    vectors: dict[str, Floats] = {}
    for first in range(0, len(texts), _REPORT_EVERY):
        report_progress(f"{first:,} of {len(texts):,} questions embedded")
        part = texts[first:first + _REPORT_EVERY]
        vectors |= zip(part, model.embed_all(part, _BATCH_SIZE), strict=True)
    return make_embedder(vectors, model.id)


@dataclass(slots=True)
class Outcomes:
    """The counted visits. waits_s: to the first token, infinite without one. by_kind: visits by the cache's result (hit,
    semantic, coalesced, miss, failed). wrong: of these, answered with another question's article. repeated: of these,
    repeated questions. usd, calls and tokens are counted by the providers; they include the judge's. batch_usd: spend per
    visit, of each of at most N_BATCHES equal parts. n_verdicts: replies to the judge.
    """

    waits_s: "array[float]" = field(default_factory=lambda: array("d"))
    by_kind: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    n_failed: int = 0
    n_calls: int = 0
    n_prompted: int = 0  # tokens
    n_cached: int = 0
    usd: float = 0.0
    batch_usd: list[float] = field(default_factory=list)
    n_verdicts: int = 0

    @property
    def n(self) -> int:
        return len(self.waits_s)

    @property
    def n_past(self) -> int:
        return sum(wait_s > LONG_S for wait_s in self.waits_s)

    def at(self, shares: Sequence[float]) -> list[float]:
        exact = ExactDistribution(self.waits_s)
        return [exact.quantile(share) for share in shares]

    def add_counts(self, providers: Sequence[DeskProvider], sign: int) -> None:
        """Add (sign 1) or subtract (sign -1) the providers' current counts."""
        for counts in [each.counts for each in providers]:
            self.n_calls += sign * counts.n_asked
            self.n_prompted += sign * counts.n_tokens_prompted
            self.n_cached += sign * counts.n_tokens_cached
            self.usd += sign * counts.cost_usd


async def visit_in_virtual_time(loop: SimLoop, visits: Sequence[Visit], n_warm: int, route: Mapping[str, Any], *,
                                rate_rps: float, seed: int, embedder: MemoryEmbedder | None = None) -> Outcomes:
    """Poisson arrivals at a gateway whose route has these settings. The first `n_warm` visits are not counted."""
    system = build_virtual_system(Settings(
        upstreams={name: SimulatedUpstream(provider=make_provider(number, seed), probe=False)
                   for number, name in enumerate(NAMES)},
        routes={ROUTE: RouteSettings(NAMES, model=MODEL, **route)}), loop, seed)
    articles = {visit.text: visit.article for visit in visits}
    model = DeskModel(articles, seed)
    providers = [DeskProvider(name, make_provider(number, seed), loop, model) for number, name in enumerate(NAMES)]
    for each in providers:
        upstream = simulated_upstream(system, each.name)
        upstream.provider, upstream.number_of = each, each.number_of
    if system.embedding is not None:
        system.embedding.foreground = system.embedding.background = embedder
    rng, outcomes, spent_usd = Random(seed), Outcomes(), []
    size = max(1, (len(visits) - n_warm) // N_BATCHES)
    visitors = _Visitors(system.gateway, loop, DeskPrompts(seed), outcomes)
    at = loop.now()
    async with asyncio.TaskGroup() as group:
        for number, visit in enumerate(visits):
            at += rng.expovariate(rate_rps)
            await asyncio.sleep(at - loop.now())
            if number == n_warm:
                outcomes.add_counts(providers, -1)
                outcomes.n_verdicts -= model.n_verdicts
            if number >= n_warm and (number - n_warm) % size == 0:
                spent_usd.append(sum(each.counts.cost_usd for each in providers))
            group.create_task(visitors.visit(number, visit, counts=number >= n_warm))
    outcomes.add_counts(providers, 1)
    outcomes.n_verdicts += model.n_verdicts
    spent_usd.append(sum(each.counts.cost_usd for each in providers))
    outcomes.batch_usd = [(after - before) / size for before, after in pairwise(spent_usd[:N_BATCHES + 1])]
    return outcomes


class _Visitors:
    """Sends requests, and checks the answers."""

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
        try:
            arrival = Arrival(f"req_{number:x}", loop.now())
            served = await serve_and_read(self._gateway, decode(Api.MESSAGES, body), arrival, loop)
        except StayfastError:
            wait_s, kind, is_right = inf, "failed", True
        else:
            wait_s, kind = served.ttft_s, cache_result(served.reply.cache)
            is_right = read_article(served.body) == visit.article
        if counts:
            outcomes.waits_s.append(wait_s)
            outcomes.n_failed += kind == "failed"
            outcomes.by_kind[kind] += 1
            outcomes.wrong[kind] += not is_right
            outcomes.repeated[kind] += visit.is_repeated


class DeskVisits(NamedTuple):
    """Visits over sockets. n_warm: not counted. batch_usd: the providers' charge per counted visit, in each BATCH_S."""

    result: Result
    batch_usd: list[float]
    n_warm: int


class _VisitPrompts(Prompts):
    """Visits as prompts of the bench, beginning with the visit number `first`."""

    def __init__(self, prompts: DeskPrompts, visits: Sequence[Visit], first: int) -> None:
        self.system = prompts.system
        self._prompts = prompts
        self._visits = visits
        self._first = first
        self.n_sent = 0

    def messages(self, shot: Shot) -> list[tuple[str, str]]:
        self.n_sent += 1
        return [("user", self._prompts.message(self._visits[(self._first + shot.number) % len(self._visits)]))]


async def visit_over_sockets(visits: Sequence[Visit], route: Mapping[str, Any], rate_rps: float, *, warmup_s: float,
                             seconds: float, seed: int) -> DeskVisits:
    """Send visits to a gateway with this route; the first `warmup_s` are not counted. Raises SetUpFailed."""
    prompts = DeskPrompts(seed)
    async with Processes() as processes:
        articles = processes.write_file({visit.text: visit.article for visit in visits})
        sim = await processes.start("-m", "stayfast.lab.workloads.support_desk", articles, str(seed))
        gateway = await processes.start_gateway({
            "upstreams": {name: {"kind": "anthropic", "base_url": f"{sim.url}/{name}", "key": "none", "probe": False}
                          for name in NAMES},
            "routes": {ROUTE: {"upstreams": list(NAMES), "model": MODEL, **route}}})

        async def send(seconds: float, seed: int, own: _VisitPrompts) -> Result:
            load = LoadSpec(seconds, rate_rps, n_input=1, n_output=MAX_OUTPUT, api=Api.MESSAGES, model=ROUTE,
                            extra={"temperature": 0})
            return await run_load(load, gateway.url, seed, own)

        async def read_charge() -> tuple[int, float]:
            counts = await sim.get("/_sim/counts")
            return counted.n_sent, sum(float(each["cost_usd"]) for each in counts["providers"].values())

        async def read_charges() -> None:
            while True:
                charged.append(await read_charge())
                await asyncio.sleep(BATCH_S)

        n_warm = len((await send(warmup_s, seed, _VisitPrompts(prompts, visits, 0))).samples)
        counted, charged = _VisitPrompts(prompts, visits, n_warm), list[tuple[int, float]]()
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read_charges())
            result = await send(seconds, seed + 1, counted)
            reading.cancel()
        charged.append(await read_charge())
        return DeskVisits(result, [(usd - usd_before) / (n - n_before) for (n_before, usd_before), (n, usd)
                                   in pairwise(charged) if n > n_before], n_warm)


if __name__ == "__main__":
    uvloop.run(_serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=dict[str, int]), int(sys.argv[2])))
