"""Maps questions to answers: phrasings by scope, with their vectors and votes. A log preserves them across restarts.

The answers are in the route's store, each under the key of a question it was made for; the index has only numbers of
answers and these keys. A newer answer that a judge found equal replaces the served one only if the caller wants it to:
otherwise a single error of the judge would exchange the answer of all phrasings.

Processes with a common store exchange their phrasings (`share`, `receive`). An answer has the same number in all of them.
All processes read the phrasings in the same order, and if two processes have added the same question, the later phrasing
replaces the earlier one.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, msgpack

from stayfast.policy.cache.answer_clusters import USUAL_SPREAD, AnswerVotes, Neighbour
from stayfast.policy.cache.lexical import Wording
from stayfast.policy.cache.similarity import N_NEAREST

if TYPE_CHECKING:
    from stayfast.stores.embedder import Floats


class Index(Protocol):
    """The vectors of all scopes: `stores.vectors`."""

    def add(self, scope: bytes, key: int, vector: "Floats") -> None:
        """Store a vector."""

    def nearest(self, scope: bytes, vector: "Floats", n: int) -> list[tuple[int, float]]:
        """Keys and cosines, nearest first."""

    def remove(self, scope: bytes, key: int) -> bool:
        """Remove a vector; returns whether it was there."""


class LabelLog(Protocol):
    """The log that is read after a restart: `stores.label_store`, or `stores.journal`, which other processes read as well.
    Keys are numbers: phrasings have positive ones, labels negative ones.
    """

    def put(self, key: int, body: bytes) -> None:
        """Write an entry; it replaces that of the same key."""

    def delete(self, key: int) -> None:
        """Delete the entry of a key."""

    def close(self) -> None:
        """Write pending changes. Blocks for a moment."""


class Logged(Struct, array_like=True, gc=False):
    """A phrasing in the log."""

    scope: bytes
    answer: int
    answer_key: bytes  # the store's key of this question; one phrasing has it
    wording: Wording
    row: bytes  # float32
    spread: float = USUAL_SPREAD  # as in `answer_clusters.Neighbour`
    is_served: bool = True  # whether the answer is served by this question's key from now on


class SemanticScope:
    """The votes of one scope, and its answers' keys in the store."""

    __slots__ = ("keys", "votes")

    def __init__(self, fillers: frozenset[str]) -> None:
        self.votes = AnswerVotes(fillers=fillers)
        self.keys: dict[int, bytes] = {}


_encode, _decode = msgpack.Encoder().encode, msgpack.Decoder(Logged).decode
_NUMBER_BITS = 31  # of an answer's number; the bits above identify the process


class SemanticIndex:
    """The index of one route, of at most `most` phrasings; the oldest is evicted. One task at a time; nothing here awaits.
    """

    def __init__(self, most: int, index: Callable[[int], Index], fillers: frozenset[str]) -> None:
        """fillers: words without content."""
        self.scopes: dict[bytes, SemanticScope] = {}
        self.log: LabelLog | None = None  # None: nothing survives a restart
        self._most = most
        self._fillers = fillers
        self._new_index = index
        self._index: Index | None = None  # until the first vector, which sets the dimensions
        self._order: dict[int, tuple[bytes, int, bytes]] = {}  # scope, answer and question of each phrasing, oldest first
        self._questions: dict[bytes, int] = {}  # the newest phrasing of each question, by its key in the store
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
        """The nearest phrasings in a known scope, nearest first."""
        return self.scopes[scope].votes.find_neighbours(
            self._index.nearest(scope, row, N_NEAREST) if self._index is not None else [])

    def add_question(self, scope: bytes, wording: Wording, row: "Floats", *, answer: int | None, answer_key: bytes,
                     spread: float = USUAL_SPREAD, is_served: bool = True) -> None:
        """Add a question that leads to this answer (None: to a new one). is_served: from now on, the answer is served by
        `answer_key`.
        """
        is_confirmed = answer is not None
        if answer is None:
            self._n_answers += 1
            answer = self._n_answers
        self._n_keys += 1
        entry = Logged(scope, answer, answer_key, wording, row.tobytes() if self.log is not None else b"",
                       spread, is_served)
        self._add(self._n_keys, entry, row)
        if is_confirmed:
            self.scopes[scope].votes.confirm(answer)
        if self.log is not None:
            self.log.put(self._n_keys, _encode(entry))
        self._evict_oldest()

    def share(self, log: LabelLog, worker_id: int) -> None:
        """Share new phrasings with other processes from now on. worker_id: 32 bits that identify this process: the upper
        bits of its answers' numbers.
        """
        self.log = log
        self._n_answers = worker_id << _NUMBER_BITS

    def receive(self, body: bytes, n_dims: int, floats: Callable[[bytes], "Floats"], *, is_own: bool) -> None:
        """Add a phrasing from the shared log. Raises ValueError if it cannot be read, or is of another embedder."""
        entry = _decode(body)
        if len(entry.row) != 4 * n_dims:
            raise ValueError("the entry is of another embedder")
        known = self._questions.get(entry.answer_key)
        if known is None and is_own:
            return  # it has been removed meanwhile
        if known is not None:
            if self._order[known][1] == entry.answer:
                return
            self.remove(known)
        self._n_keys += 1
        self._add(self._n_keys, entry, floats(entry.row))
        self._evict_oldest()

    def _evict_oldest(self) -> None:
        while len(self._order) > self._most:
            self.remove(next(iter(self._order)))

    def remove(self, key: int) -> None:
        """Remove a phrasing, if it is there. The last phrasing of an answer removes the answer, the last of a scope the
        scope.
        """
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
        """Restore the phrasings of a log. On any thread, as long as no other one uses the index."""
        for key, body in logged.items():
            if key > 0:
                entry = _decode(body)
                self._add(key, entry, floats(entry.row))
                self._n_keys = max(self._n_keys, key)
                self._n_answers = max(self._n_answers, entry.answer)

    def _add(self, key: int, entry: Logged, row: "Floats") -> None:
        indexed = self.scopes.get(entry.scope)
        if indexed is None:
            indexed = self.scopes[entry.scope] = SemanticScope(self._fillers)
        if entry.is_served or entry.answer not in indexed.keys:
            indexed.keys[entry.answer] = entry.answer_key
        if self._index is None:
            self._index = self._new_index(len(row))
        self._order[key] = (entry.scope, entry.answer, entry.answer_key)
        self._questions[entry.answer_key] = key
        evicted = indexed.votes.add(key, entry.answer, entry.wording, entry.spread)
        self._index.add(entry.scope, key, row)
        if evicted is not None:
            self._drop(entry.scope, evicted)

    def _drop(self, scope: bytes, key: int) -> None:
        """Remove a phrasing's vector and log entry; its vote is removed already."""
        question = self._order.pop(key)[2]
        if self._questions.get(question) == key:
            del self._questions[question]
        if self._index is not None:
            self._index.remove(scope, key)
        if self.log is not None:
            self.log.delete(key)

    def __repr__(self) -> str:
        return f"<SemanticIndex: {len(self)} in {len(self.scopes)} scopes>"
