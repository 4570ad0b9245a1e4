"""The semantic cache of one route: finds answers to questions with the same meaning, and learns how reliable they are.

    find           within the scope: is the question eligible, embedded in time and near others, and do these agree on one
                   answer with enough certainty? Each step can only turn a hit into a miss; each miss has a reason
    learn_answer   the question got its own answer (after a miss, or to audit a hit): in the background, the cache compares
                   it with the neighbours' answers. The result labels the lookup, and the question is added to the index

If the store has lost or purged an answer, the next lookup removes it from the index, unless the store cannot be reached. A
lookup in an empty scope needs no embedding. All labels come from `Sameness`: whether two answers are equivalent.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from stayfast.core.clock import Clock
from stayfast.core.events import SemanticLookup, Sink
from stayfast.core.types import Api, Request
from stayfast.pipeline.cache.answer_judge import Sameness
from stayfast.pipeline.cache.labels import LabelRecord, Learning, decode_label
from stayfast.pipeline.cache.semantic_index import Index, LabelLog, SemanticIndex
from stayfast.pipeline.tasks import BackgroundTasks
from stayfast.policy.cache.answer_clusters import USUAL_SPREAD, Neighbour
from stayfast.policy.cache.calibration import CalibrationEstimate, Calibrator
from stayfast.policy.cache.eligibility import exclusion_reason
from stayfast.policy.cache.english import LEXICONS
from stayfast.policy.cache.freshness import age_of
from stayfast.policy.cache.lexical import Wording, parse_wording
from stayfast.policy.cache.similarity import (
    N_FEATURES,
    FixedThreshold,
    Judgement,
    SemanticConfig,
    judge_question,
    reject_new_words,
)
from stayfast.stores.base import CachedAnswer, Store
from stayfast.stores.embedder import Embedders, NoEmbedder
from stayfast.wire.canonical import CanonicalRequest
from stayfast.wire.stored_answer import read_stored_text

if TYPE_CHECKING:
    from stayfast.stores.embedder import Floats


class Verifier(Protocol):
    """Checks a hit before it is returned. A failure counts as a no. It must end within the time of the lookup."""

    async def is_right_answer(self, question: str, answer: str) -> bool:
        """Whether an answer that was made for another question also answers this one."""


N_COMPARED = 8  # answers that a new one is compared with: the judged one, and others with most neighbours
MAX_BYTES_A_CHAR = 4
MAX_PENDING = 256  # answers that are compared at the same time; beyond it, the newest is not compared
REPLACED_AT_SHARE = 0.5  # of `semantic_ttl_s`: an answer of this age is replaced by a newer, equal one
ALIKE = 0.6  # cosine from which a question waits for the comparison of another, which may add the answer that it needs
_CONVERSATIONS = frozenset((Api.CHAT, Api.MESSAGES, Api.RESPONSES))


class SemanticQuery(Struct, eq=False):
    """A question, and the state of its lookup."""

    embedding: Embedders  # computed the vectors; a reload may replace it
    scope: bytes
    tenant: str | None
    text: str
    wording: Wording
    row: "Floats | None" = None  # None: not embedded
    neighbours: list[Neighbour] = []
    judgement: Judgement | None = None
    was_given: bool = False  # a neighbour's answer was returned, and is audited
    is_unusable: bool = False  # the found answer could not be returned, and is replaced by an equal one


class SemanticHit(Struct, frozen=True):
    """A hit: the answer to another question. is_audited: the question's own answer is made, too."""

    key: bytes  # in the store, of the other question
    answer: CachedAnswer
    cosine: float
    p: float
    query: SemanticQuery
    is_audited: bool


class _SameAnswer(Struct, frozen=True, gc=False):
    """The stored answer that equals a new one; None: none does. is_replaced: the new one is served in its place."""

    answer: int | None
    is_replaced: bool


class _Comparison(Struct, frozen=True, eq=False):
    """A question whose answer is being compared."""

    scope: bytes
    row: "Floats"
    is_over: asyncio.Event


class SemanticStats(Struct, frozen=True):
    """The state of a route's semantic cache, over all tenants. threshold, estimate: of the tenant with the largest possible
    error; None: no tenant has a threshold yet; estimate: None: a fixed threshold, whose error is unknown.
    """

    n_phrasings: int
    n_answers: int
    n_scopes: int
    n_labels: int
    is_shadow: bool
    threshold: float | None
    estimate: CalibrationEstimate | None
    n_audits: int
    n_audits_wrong: int
    n_drifted: int


class SemanticCache:
    """The semantic cache of one route. Belongs to one loop; learns in background tasks."""

    def __init__(self, config: SemanticConfig, route: str, *, store: Store, embedding: Embedders,
                 index: Callable[[int], Index], sameness: Sameness, verifier: Verifier | None, clock: Clock, rng: Random,
                 sink: Sink, is_ready: bool = True) -> None:
        """rng: chooses the audited hits. is_ready: False: its log must be read first."""
        self.config = config
        self._fixed = FixedThreshold(config.threshold) if config.threshold is not None else None
        self.learning = Learning(config.calibration_config())  # with a fixed threshold there are no labels
        self._route = route
        self._store = store
        self.embedding = embedding
        self._lexicon = LEXICONS[config.eligible.language]
        self.index = SemanticIndex(config.max_questions, index, self._lexicon.fillers)
        self.sameness = sameness
        self.verifier = verifier  # None: hits are not verified
        self._clock = clock
        self._rng = rng
        self._sink = sink
        self.is_ready = is_ready
        self._tasks = BackgroundTasks()
        self._comparisons: list[_Comparison] = []  # those that run, oldest first

    def configure(self, config: SemanticConfig, verifier: Verifier | None) -> bool:
        """Take new settings. False, and nothing has changed, if what was learned is useless with them: another judge,
        language or size. If only the bound of the error differs, labels are collected anew.
        """
        known = self.config
        if (config.same_answer_cosine, config.judge, config.max_questions, config.eligible.language) != (
                known.same_answer_cosine, known.judge, known.max_questions, known.eligible.language):
            return False
        if (config.threshold, config.calibration_config()) != (known.threshold, known.calibration_config()):
            self._fixed = FixedThreshold(config.threshold) if config.threshold is not None else None
            self.learning = Learning(config.calibration_config())
        self.config, self.verifier = config, verifier
        return True

    def rule_of(self, tenant: str | None) -> Calibrator | FixedThreshold:
        return self._fixed or self.learning.rule_of(tenant)

    async def find(self, request: Request, canonical_request: CanonicalRequest, scope: bytes, max_age_s: float, until: float,
                   *,
                   tenant: str | None) -> tuple[str, SemanticQuery | SemanticHit | None]:
        """("", hit), or the reason of a miss and the query for `learn_answer`, None if the question is not eligible. A
        lookup that is not over at the instant `until` is a miss. The caller counts hits.
        """
        why, found = await self._find(request, canonical_request, scope, max_age_s, until, tenant=tenant)
        if why:
            self.count(why)
        return why, found

    def count(self, result: str) -> None:
        """Emit the result of a lookup or an audit."""
        self._sink.emit(SemanticLookup(self._route, result))

    async def _find(self, request: Request, canonical_request: CanonicalRequest, scope: bytes, max_age_s: float,
                    until: float, *,
                    tenant: str | None) -> tuple[str, SemanticQuery | SemanticHit | None]:
        if request.api not in _CONVERSATIONS or canonical_request.question.startswith(b"["):
            return "not_text", None
        if len(canonical_request.question) > MAX_BYTES_A_CHAR * self.config.eligible.max_chars:
            return "long", None  # before it is parsed
        text = canonical_request.question.decode()
        wording = parse_wording(text, self._lexicon)
        why = exclusion_reason(text, wording, self.config.eligible, self.config.semantic_ttl_s)
        if why:
            return why, None
        query = SemanticQuery(self.embedding, scope, tenant, text, wording)
        if not self.is_ready or self.embedding.foreground is None:
            return "not_ready", query
        if scope not in self.index.scopes:
            return "no_neighbour", query
        try:
            async with asyncio.timeout_at(until):
                why = await self._judge_query(query, until)
                if why:
                    return why, None if why == "long" else query
                found = await self._fetch_hit(query, request, max_age_s, until)
        except TimeoutError:
            return "timeout", query
        return (found, query) if isinstance(found, str) else ("", found)

    async def _judge_query(self, query: SemanticQuery, until: float) -> str:
        """Find the neighbours and judge; returns the reason of a miss, or an empty text."""
        embedder = self.embedding.foreground
        if embedder is None:
            return "not_ready"
        if not embedder.is_whole(query.text):
            return "long"
        if not embedder.can_embed_within(until - self._clock.now()):
            return "no_time"
        try:
            query.row = (await embedder.embed([query.text]))[0]
        except NoEmbedder:
            return "failed"
        return self._judge(query).why

    def _judge(self, query: SemanticQuery) -> Judgement:
        """Judge a question with a vector by its neighbours."""
        indexed = self.index.scopes.get(query.scope)
        if indexed is None or query.row is None:  # the last question of the scope was evicted meanwhile
            return Judgement("no_neighbour")
        query.neighbours = self.index.find_neighbours(query.scope, query.row)
        judged = judge_question(query.wording, query.neighbours, indexed.votes, self.rule_of(query.tenant), self._lexicon)
        judged = reject_new_words(judged, query.wording, indexed.votes, self.config.new_word_cosine)
        if not judged.why and self._fixed is None:
            judged = judged._replace(why=self.learning.reject_reason(query.tenant, query.scope, self._clock.now()))
        query.judgement = judged
        return query.judgement

    async def _fetch_hit(self, query: SemanticQuery, request: Request, max_age_s: float, until: float) -> SemanticHit | str:
        """The judged answer, if it is stored, fresh, and the verifier agrees; else the reason of a miss."""
        judgement = query.judgement
        assert judgement is not None
        assert judgement.nearest is not None
        answer = judgement.nearest.answer
        key, stored = await self._read_stored(query.scope, answer, until)
        if stored is None:
            query.judgement = None  # there is nothing to compare with
            return "gone"
        if age_of(stored.kept_at, self._clock.wall()) > min(max_age_s, self.config.semantic_ttl_s):
            return "old"
        if self.verifier is not None and not await self.verifier.is_right_answer(query.text, read_stored_text(request,
                                                                                                               stored.body)):
            return "refused"
        if self._fixed is None:
            self.learning.record_hit(query.tenant, self._clock.now())
        query.was_given = self._rng.random() < self.config.audit_share
        return SemanticHit(key, stored, judgement.nearest.cosine, judgement.p, query, query.was_given)

    async def _read_stored(self, scope: bytes, answer: int, until: float) -> tuple[bytes, CachedAnswer | None]:
        """The key of an answer, and the stored answer. An answer that the store has lost is forgotten."""
        indexed = self.index.scopes.get(scope)
        key = indexed.keys.get(answer, b"") if indexed is not None else b""
        if not key:
            return key, None
        stored, is_known = await self._store.find(key, until)
        if stored is None and is_known:
            self.index.forget_answer(scope, answer)
        return key, stored

    def note_audit_started(self, query: SemanticQuery) -> None:
        """The question's own answer is being made, to audit the hit."""
        self.learning.note_audit_started(query.tenant)
        self.count("audit_started")

    def learn_answer(self, query: SemanticQuery, request: Request, key: bytes, stored: CachedAnswer) -> None:
        """The question's own answer is stored under `key`: learn from it, in the background."""
        if self.n_pending < MAX_PENDING and query.embedding is self.embedding:
            self._tasks.spawn(self._learn(query, request, key, stored))

    def learn_unstorable(self, query: SemanticQuery) -> None:
        """The question's own answer is whole, but must not be stored (a tool call, a filtered answer): so no neighbour's
        answer was right.
        """
        judgement = query.judgement
        if judgement is not None and judgement.nearest is not None and judgement.features:
            self._record_label(query, judgement.nearest.answer, judgement, is_right=False)

    async def _learn(self, query: SemanticQuery, request: Request, key: bytes, stored: CachedAnswer) -> None:
        if query.row is None:
            embedder = self.embedding.background
            if embedder is None or not self.is_ready or not embedder.is_whole(query.text):
                return
            try:
                query.row = (await embedder.embed([query.text]))[0]
            except NoEmbedder:
                return
        if query.judgement is None:
            self._judge(query)
        row, comparison = query.row, _Comparison(query.scope, query.row, asyncio.Event())
        earlier = [one for one in self._comparisons
                   if one.scope == query.scope and float(one.row @ row) >= ALIKE]
        self._comparisons.append(comparison)
        try:
            for one in earlier:
                await one.is_over.wait()
            known = self.index.find_neighbours(query.scope, row) if query.scope in self.index.scopes else []
            text = read_stored_text(request, stored.body)
            found = await self._find_same_answer(query, known, request, text)
            if found is not None:
                self._add_question(query, row, known, found, key)
        finally:
            self._comparisons.remove(comparison)
            comparison.is_over.set()

    async def _find_same_answer(self, query: SemanticQuery, known: list[Neighbour], request: Request,
                                text: str) -> _SameAnswer | None:
        """The neighbour's answer that is equivalent. None: a comparison had no result, so that nothing is known. The
        comparison with the judged answer is a label.
        """
        judgement, is_decided = query.judgement, True
        judged = judgement.nearest.answer if judgement is not None and judgement.nearest and judgement.features else None
        votes = Counter(one.answer for one in known)  # in the order of the neighbours, where equal
        answers = ([] if judged is None else [judged]) + [answer for answer, _ in votes.most_common()]
        for answer in list(dict.fromkeys(answers))[:N_COMPARED]:
            _, stored = await self._read_stored(query.scope, answer, self._clock.now() + self.config.lookup_timeout_s)
            if stored is None:
                continue
            is_same = await self.sameness.is_same(text, read_stored_text(request, stored.body), query.text, request.model)
            if is_same is None:
                is_decided = False
                continue
            if answer == judged and judgement is not None:
                self._record_label(query, answer, judgement, is_right=is_same)
            if is_same:
                is_old = age_of(stored.kept_at, self._clock.wall()) > REPLACED_AT_SHARE * self.config.semantic_ttl_s
                return _SameAnswer(answer, is_old or query.is_unusable)
        return _SameAnswer(None, True) if is_decided else None

    def _record_label(self, query: SemanticQuery, answer: int, judgement: Judgement, *, is_right: bool) -> None:
        n_audits = self.learning.note_audit_judged(query.tenant) if query.was_given else 1.0
        label = LabelRecord(judgement.features, is_right, query.was_given, query.tenant, query.scope, answer, n_audits,
                            judgement.is_servable)
        self._record_vote(label)
        if self._fixed is None:
            self.learning.miss_share = self.sameness.miss_share
            self.learning.learn(label, self.index.log)
        if query.was_given:
            if self._fixed is not None:
                self.learning.add_own(label, self.index.log)
            self.count("audit_right" if is_right else "audit_wrong")

    def _record_vote(self, label: LabelRecord) -> None:
        indexed = self.index.scopes.get(label.scope)
        if indexed is not None and label.answer in indexed.keys:
            indexed.votes.record_judgement(label.answer, is_right=label.is_right, was_given=label.was_given)

    def _add_question(self, query: SemanticQuery, row: "Floats", known: list[Neighbour], found: _SameAnswer,
                      key: bytes) -> None:
        if known and known[0].wording.words == query.wording.words:
            self.index.remove(known[0].key)  # the same question
        spread = next((one.cosine for one in known if one.answer == found.answer), USUAL_SPREAD)
        self.index.add_question(query.scope, query.wording, row, answer=found.answer, answer_key=key, spread=spread,
                                is_served=found.is_replaced)

    def begin_logging(self, log: LabelLog | None) -> None:
        """Everything logged was read; log from now on. log: None: it cannot be read."""
        self.index.begin_logging(log)
        self.is_ready = True

    def share(self, log: Callable[[bytes], LabelLog], worker_id: bytes) -> None:
        """Share what is learned with other processes, through `receive_logged`. worker_id: 8 bytes that identify this
        process in the log that `log` makes.
        """
        self.index.share(log(worker_id), int.from_bytes(worker_id[:4], "big"))

    def receive_logged(self, key: int, body: bytes, is_own: bool, *, floats: Callable[[bytes], "Floats"]) -> None:
        """An entry of the log of this process or another. Raises ValueError if it cannot be read."""
        if key > 0:
            embedder = self.embedding.background
            self.index.receive(body, embedder.n_dims if embedder is not None else 0, floats, is_own=is_own)
            return
        if is_own:
            return
        label = decode_label(body)
        if len(label.features) != N_FEATURES:
            raise ValueError("the entry is of another version")
        self._record_vote(label)
        if self._fixed is None:
            self.learning.add_remote(label, self.index.log)

    def restore_logged(self, logged: Mapping[int, bytes], floats: Callable[[bytes], "Floats"]) -> None:
        """Learn from a log. On any thread, while `is_ready` is False. Raises ValueError for an invalid log."""
        self.index.restore(logged, floats)
        if self._fixed is None:
            self.learning.restore(logged)

    @property
    def n_pending(self) -> int:
        """Answers that are still to be learned, in the background."""
        return len(self._tasks)

    def stats(self) -> SemanticStats:
        known, labels = self.index, self.learning
        if not self.is_ready:  # another thread reads the log
            return SemanticStats(0, 0, 0, 0, self._fixed is None, None, None, 0, 0, 0)
        threshold, estimate = labels.worst_estimate() if self._fixed is None else (self._fixed.threshold, None)
        n_wrong, n_audits = labels.audit_counts()
        return SemanticStats(
            len(known), known.n_answers, len(known.scopes), labels.n_labels, self._fixed is None and labels.is_shadow,
            threshold,
            estimate, n_audits, n_wrong, labels.n_drifted)

    def __repr__(self) -> str:
        return f"<SemanticCache of {self._route}: {self.index!r}, {self._fixed or self.learning!r}>"
