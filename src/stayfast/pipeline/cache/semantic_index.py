"""Which questions lead to which answers: phrasings by scope, with their vectors and votes, and what outlives a restart.

An answer stands in the route's store, under the key of the question it was made for last; here is only what leads to it.
Processes whose store is one tell each other of their phrasings (`share`, `receive`): an answer has the same number in all of
them, and a question that was asked in two is a phrasing of the answer that was told last: all hear all in one order.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, msgpack

from stayfast.policy.cache.answer_clusters import AnswerVotes, Neighbour
from stayfast.policy.cache.lexical import Wording
from stayfast.policy.cache.similarity import N_NEAREST

if TYPE_CHECKING:
    from stayfast.stores.embedder import Floats


class Index(Protocol):
    """The vectors of all scopes: `stores.vectors`."""

    def add(self, scope: bytes, key: int, vector: "Floats") -> None:
        """Keep a vector."""

    def nearest(self, scope: bytes, vector: "Floats", n: int) -> list[tuple[int, float]]:
        """Keys and cosines, nearest first."""

    def remove(self, scope: bytes, key: int) -> bool:
        """Forget a vector."""


class LabelLog(Protocol):
    """What outlives a restart: `stores.label_store`, or `stores.journal`, which others hear as well. Keys are numbers:
    those of phrasings are from 1 on, others below 0.
    """

    def put(self, key: int, body: bytes) -> None:
        """Keep it in place of the key's last one."""

    def delete(self, key: int) -> None:
        """Keep nothing under this key."""

    def close(self) -> None:
        """Write what is not written yet. Blocks for a moment."""


class Logged(Struct, array_like=True, gc=False):
    """A phrasing in the log."""

    scope: bytes
    answer: int
    answer_key: bytes  # of this very question, of which there is one phrasing
    wording: Wording
    row: bytes  # float32


class SemanticScope:
    """Who votes in one scope, and under which keys of the store the answers are."""

    __slots__ = ("keys", "votes")

    def __init__(self) -> None:
        self.votes = AnswerVotes()
        self.keys: dict[int, bytes] = {}


_encode, _decode = msgpack.Encoder().encode, msgpack.Decoder(Logged).decode
_ROOM = 31  # bits of a number of an answer, beside those that say whose it is


class SemanticIndex:
    """One route's, at most `most`: beyond it the oldest goes. One task at a time; nothing here waits."""

    def __init__(self, most: int, index: Callable[[int], Index]) -> None:
        self.scopes: dict[bytes, SemanticScope] = {}
        self.log: LabelLog | None = None  # None: a restart forgets all
        self._most = most
        self._new_index = index
        self._index: Index | None = None  # until the first vector says how long they are
        self._order: dict[int, tuple[bytes, int, bytes]] = {}  # scope, answer and question of each phrasing, oldest first
        self._questions: dict[bytes, int] = {}  # the newest phrasing of each
        self._n_keys = 0
        self._n_answers = 0

    def begin_logging(self, log: LabelLog | None) -> None:
        self.log = log

    def __len__(self) -> int:
        return len(self._order)

    @property
    def n_answers(self) -> int:
        return sum(scope.votes.n_answers for scope in self.scopes.values())

    def find_neighbours(self, scope: bytes, row: "Floats") -> list[Neighbour]:
        """The nearest phrasings in a scope that has some, nearest first."""
        return self.scopes[scope].votes.find_neighbours(
            self._index.nearest(scope, row, N_NEAREST) if self._index is not None else [])

    def add_question(self, scope: bytes, wording: Wording, row: "Floats", *, answer: int | None, answer_key: bytes) -> None:
        """A question leads to this answer, or to a new one; the answer is from now on what stands under `answer_key`."""
        if answer is None:
            self._n_answers += 1
            answer = self._n_answers
        self._n_keys += 1
        entry = Logged(scope, answer, answer_key, wording, row.tobytes() if self.log is not None else b"")
        self._add(self._n_keys, entry, row)
        if self.log is not None:
            self.log.put(self._n_keys, _encode(entry))
        self._bound()

    def share(self, log: LabelLog, worker_id: int) -> None:
        """From now on others hear of it. who: 32 bits, nobody else's: answers are numbered from there."""
        self.log = log
        self._n_answers = worker_id << _ROOM

    def receive(self, body: bytes, n_dims: int, floats: Callable[[bytes], "Floats"], *, is_own: bool) -> None:
        """A phrasing that was told. Raises ValueError for what is none, or not of this embedder."""
        entry = _decode(body)
        if len(entry.row) != 4 * n_dims:
            raise ValueError("it is another embedder's")
        known = self._questions.get(entry.answer_key)
        if known is None and is_own:
            return  # and it is forgotten already
        if known is not None:
            if self._order[known][1] == entry.answer:
                return
            self.remove(known)
        self._n_keys += 1
        self._add(self._n_keys, entry, floats(entry.row))
        self._bound()

    def _bound(self) -> None:
        while len(self._order) > self._most:
            self.remove(next(iter(self._order)))

    def remove(self, key: int) -> None:
        """Forget one phrasing, if it is there, and with the last one its answer and its scope."""
        if key not in self._order:
            return
        scope, answer, _ = self._order[key]
        indexed = self.scopes[scope]
        if indexed.votes.remove(key):
            del indexed.keys[answer]
        self._drop(scope, key)
        if not len(indexed.votes):
            del self.scopes[scope]

    def forget_answer(self, scope: bytes, answer: int) -> None:
        indexed = self.scopes.get(scope)
        if indexed is None:
            return
        indexed.keys.pop(answer, None)
        for key in indexed.votes.forget(answer):
            self._drop(scope, key)
        if not len(indexed.votes):
            del self.scopes[scope]

    def restore(self, logged: Mapping[int, bytes], floats: Callable[[bytes], "Floats"]) -> None:
        """Learn again what was logged. On any thread, as long as nobody else looks."""
        for key, body in logged.items():
            if key > 0:
                entry = _decode(body)
                self._add(key, entry, floats(entry.row))
                self._n_keys = max(self._n_keys, key)
                self._n_answers = max(self._n_answers, entry.answer)

    def _add(self, key: int, entry: Logged, row: "Floats") -> None:
        indexed = self.scopes.get(entry.scope)
        if indexed is None:
            indexed = self.scopes[entry.scope] = SemanticScope()
        indexed.keys[entry.answer] = entry.answer_key
        if self._index is None:
            self._index = self._new_index(len(row))
        self._order[key] = (entry.scope, entry.answer, entry.answer_key)
        self._questions[entry.answer_key] = key
        gone = indexed.votes.add(key, entry.answer, entry.wording)
        self._index.add(entry.scope, key, row)
        if gone is not None:
            self._drop(entry.scope, gone)

    def _drop(self, scope: bytes, key: int) -> None:
        """What is known of a phrasing beside its vote."""
        question = self._order.pop(key)[2]
        if self._questions.get(question) == key:
            del self._questions[question]
        if self._index is not None:
            self._index.remove(scope, key)
        if self.log is not None:
            self.log.delete(key)

    def __repr__(self) -> str:
        return f"<SemanticIndex: {len(self)} in {len(self.scopes)} scopes>"
