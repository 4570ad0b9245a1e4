"""What the workers of one parent tell as one: their metrics and their recent requests.

No counter ever goes back, which Prometheus would take for a new start and count everything again. So a worker writes down
what it has counted before it shows it; one that takes a crashed worker's place goes on from there, and until it answers,
or while a worker is stuck, what it had written down stands for it. What was counted between the last scrape and a crash
is lost.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from platform import python_version

import msgspec

from stayfast import __version__
from stayfast.compose.caches import Caches, Forgot, Told, forgotten, summed
from stayfast.compose.turns import Turns
from stayfast.core.events import RequestDone
from stayfast.observe.families import BUILD_INFO, WORKERS
from stayfast.observe.metrics import Metrics
from stayfast.observe.recent import Recent
from stayfast.observe.totals import Snapshot, Totals
from stayfast.observe.waterfall import Listed, Waterfall, listed, waterfall
from stayfast.server.backend import Asked, ToForget
from stayfast.server.siblings import Siblings
from stayfast.turns.remote_resume import Heard, Sought

_N_PIECES_AT_A_TIME = 16  # series written before the loop has its turn: a quarter of a millisecond
_NORMAL_S = 3600.0


class _Question(msgspec.Struct, frozen=True):
    """From one worker to another."""

    what: str  # metrics, list, one, caches, forget, kept, turn
    asked: Asked = Asked()
    request_id: str = ""
    forget: ToForget = ToForget()
    key: bytes = b""
    turn: Sought | None = None


@dataclass(frozen=True, slots=True)
class Together:
    """One worker's view of all. One loop's."""

    seen: Metrics
    recent: Recent
    catch_up: Callable[[], None]  # called before either is read
    siblings: Siblings
    caches: Caches = field(default_factory=Caches)
    turns: Turns = field(default_factory=Turns)

    async def begin(self) -> None:
        """Go on from where this worker's predecessor ended, and answer the others. Raises OSError."""
        last = self._last_of(self.siblings.n)
        if last is not None:
            self.seen.resume(last)
        await self.siblings.listen(self._answer)

    async def metrics(self) -> bytes:
        """The metrics of all workers, in Prometheus's text format."""
        whole, n_answered, n_silent = await self._whole()
        workers = whole.gauges[WORKERS.name]
        workers[("answered",)], workers[("silent",)] = n_answered, n_silent
        whole.gauges[BUILD_INFO.name][__version__, python_version()] = 1
        parts = []
        for number, piece in enumerate(whole.pieces()):
            parts.append(piece)
            if number % _N_PIECES_AT_A_TIME == 0:
                await asyncio.sleep(0)
        return "".join(parts).encode()

    async def _whole(self) -> tuple[Totals, int, int]:
        """What all workers have counted; how many of them answered, and how many did not."""
        whole = Totals(self.seen.totals.bounds_s)
        await _in_pieces(whole.adding(self._taken()))
        answers = await self.siblings.ask(msgspec.msgpack.encode(_Question("metrics")))
        n_silent = 0
        for n, answer in answers.items():
            told = _decoded(answer)
            if told is not None:
                await _in_pieces(whole.adding(told))
                continue
            n_silent += 1
            last = self._last_of(n)
            if last is not None:
                await _in_pieces(whole.adding(last, is_of_now=False))
        return whole, 1 + len(answers) - n_silent, n_silent

    async def caches_told(self) -> bytes:
        """What the caches of all routes hold and saved, of all workers, as JSON."""
        whole, _, _ = await self._whole()
        told = [await self.caches.stats()]
        for answer in (await self.siblings.ask(msgspec.msgpack.encode(_Question("caches")))).values():
            told += [msgspec.msgpack.decode(answer, type=dict[str, Told])] if answer else []
        return summed(told, whole)

    async def forget(self, what: ToForget) -> bytes:
        """Forget kept answers in all workers; how many, as JSON."""
        answers = await self.siblings.ask(msgspec.msgpack.encode(_Question("forget", forget=what)))
        others = [msgspec.msgpack.decode(answer, type=list[Forgot]) for answer in answers.values() if answer]
        silent = [[Forgot(gone=f"worker {n} did not answer") for n, answer in answers.items() if not answer]]
        return forgotten([await self.caches.purge(what), *others, *silent])

    async def kept(self, key: bytes) -> bytes | None:
        """What is known of one kept answer, as JSON; None where no worker has it."""
        found = await self.caches.kept(key)
        if found is not None:
            return msgspec.json.encode(found)
        answers = await self.siblings.ask(msgspec.msgpack.encode(_Question("kept", key=key)))
        return next((answer for answer in answers.values() if answer), None)

    async def requests(self, asked: Asked) -> bytes:
        """The newest requests of all workers, newest first, as JSON."""
        found = self._listed(asked)
        for answer in (await self.siblings.ask(msgspec.msgpack.encode(_Question("list", asked)))).values():
            found += msgspec.msgpack.decode(answer, type=list[Listed]) if answer else []
        found.sort(key=lambda one: one.ended_at, reverse=True)
        return msgspec.json.encode({"object": "list", "data": found[:asked.n]})

    async def turn(self, sought: Sought) -> Heard | None:
        """What has come of a turn that another worker keeps; None where none does."""
        answers = await self.siblings.ask(msgspec.msgpack.encode(_Question("turn", turn=sought)))
        found = [msgspec.msgpack.decode(answer, type=Heard | None) for answer in answers.values() if answer]
        return next((heard for heard in found if heard is not None), None)

    async def request(self, request_id: str, tenant: str | None) -> bytes | None:
        """One request in full, as JSON; None where no worker keeps it, or it is not the tenant's to see."""
        question = _Question("one", Asked(tenant=tenant), request_id)
        found = [self._one(question)]
        if found[0] is None:
            answers = await self.siblings.ask(msgspec.msgpack.encode(question))
            found += [msgspec.msgpack.decode(answer, type=Waterfall | None) for answer in answers.values() if answer]
        newest = max((one for one in found if one is not None), key=lambda one: one.ended_at, default=None)
        return msgspec.json.encode(newest) if newest is not None else None

    async def _answer(self, message: bytes) -> bytes:
        question = msgspec.msgpack.decode(message, type=_Question)
        match question.what:
            case "metrics":
                return self._written_down(self._snapshot())
            case "list":
                return msgspec.msgpack.encode(self._listed(question.asked))
            case "caches":
                return msgspec.msgpack.encode(await self.caches.stats())
            case "forget":
                return msgspec.msgpack.encode(await self.caches.purge(question.forget))
            case "kept":
                found = await self.caches.kept(question.key)
                return msgspec.json.encode(found) if found is not None else b""
            case "turn":
                return msgspec.msgpack.encode(await self.turns.tell(question.turn) if question.turn is not None else None)
            case _:
                return msgspec.msgpack.encode(self._one(question))

    def _listed(self, asked: Asked) -> list[Listed]:
        self.catch_up()
        newest = self.recent.newest(is_notable=asked.is_notable)
        return [listed(fact) for fact, _ in zip(_visible(newest, asked.tenant), range(asked.n), strict=False)]

    def _one(self, question: _Question) -> Waterfall | None:
        self.catch_up()
        for fact in _visible(self.recent.named(question.request_id), question.asked.tenant):
            return waterfall(fact, self.seen.first_tokens(fact.route, _NORMAL_S))
        return None

    def _snapshot(self) -> Snapshot:
        self.catch_up()
        return self.seen.snapshot()

    def _taken(self) -> Snapshot:
        """A snapshot, written down before anybody sees it where somebody may have to go on from it."""
        snapshot = self._snapshot()
        if self.siblings.others:
            self._written_down(snapshot)
        return snapshot

    def _written_down(self, snapshot: Snapshot) -> bytes:
        """It, as it is kept in the folder now."""
        data = msgspec.msgpack.encode(snapshot)
        path = self._path(self.siblings.n)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(data)
        fresh.replace(path)
        return data

    def _last_of(self, n: int) -> Snapshot | None:
        if not self.siblings.others:
            return None
        try:
            return _decoded(self._path(n).read_bytes())
        except FileNotFoundError:
            return None

    def _path(self, n: int) -> Path:
        assert self.siblings.folder is not None
        return self.siblings.folder / f"{n}.counts"


def _visible(facts: Iterable[RequestDone], tenant: str | None) -> Iterable[RequestDone]:
    return (fact for fact in facts if tenant is None or fact.tenant == tenant)


def _decoded(data: bytes | None) -> Snapshot | None:
    """None for no answer, and for one that cannot be read: of another version, or half of one."""
    if not data:
        return None
    try:
        return msgspec.msgpack.decode(data, type=Snapshot)
    except msgspec.DecodeError:
        return None


async def _in_pieces(work: Iterator[None]) -> None:
    """All of it, with a turn of the loop between any two of its pieces."""
    for _ in work:
        await asyncio.sleep(0)
