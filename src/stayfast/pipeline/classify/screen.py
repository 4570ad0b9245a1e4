"""What a route does with the texts of a request before its cache: the guard, then another route by the question's class."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from stayfast.core.classify import GuardDone, RoutedByClass
from stayfast.core.clock import Clock
from stayfast.core.deadline import Deadline
from stayfast.core.errors import Rejected
from stayfast.core.events import Sink
from stayfast.core.types import Request
from stayfast.pipeline.classify.classifier import TextClassifier
from stayfast.policy.classify.config import ClassRoutesConfig, GuardConfig
from stayfast.policy.classify.guard import (
    ALLOW,
    BLOCK,
    FLAG,
    INJECTIONS,
    LABEL,
    SECRET,
    SECRETS,
    GuardMatch,
    GuardRule,
    compile_rules,
    scan_texts,
)
from stayfast.policy.classify.head import UNKNOWN, Classification
from stayfast.stores.embedder import NoEmbedder
from stayfast.wire.classify.texts import RequestTexts, read_request_texts

_UNFINISHED = "unfinished"


class Screening(Struct, frozen=True):
    """guard: the rule of a flag; empty: nothing was found. route: where the request continues; None: where it is."""

    guard: str = ""
    route: str | None = None


class RequestScreen(Protocol):
    """The screen of one route."""

    async def screen(self, request: Request, deadline: Deadline, note: Callable[[str], None]) -> Screening:
        """Raises Rejected for a request that the guard blocks."""

    async def check_guard(self, request: Request, note: Callable[[str], None]) -> str:
        """The guard alone, for a request that another route sends here: the rule of a flag, or an empty text. Raises
        Rejected.
        """


class RouteScreen:
    """The guard and the classes of one route. Belongs to one loop; holds no state of a request."""

    __slots__ = ("_clock", "_guard", "_guard_classifier", "_route", "_route_classifier", "_routes", "_rules", "_sink")

    def __init__(self, route: str, guard: GuardConfig, routes: ClassRoutesConfig, classifiers: Mapping[str, TextClassifier],
                 *, clock: Clock, sink: Sink) -> None:
        """classifiers: by name; those that `guard` and `routes` name are among them."""
        self._route = route
        self._guard = guard
        self._routes = routes
        self._rules: Sequence[GuardRule] = [*(SECRETS if guard.secrets != "ignore" else ()),
                                            *(INJECTIONS if guard.injections != "ignore" else ())]
        compile_rules(self._rules)  # here: in a request it would use up `cap_s`
        self._guard_classifier = classifiers[guard.classifier] if guard.classifier else None
        self._route_classifier = classifiers[routes.by] if routes.by else None
        self._clock = clock
        self._sink = sink

    async def screen(self, request: Request, deadline: Deadline, note: Callable[[str], None]) -> Screening:
        texts = read_request_texts(request)
        rule = await self._check(texts, note) if self._guard.is_on else ""
        return Screening(rule, await self._choose_route(texts.question, deadline, note))

    async def check_guard(self, request: Request, note: Callable[[str], None]) -> str:
        return await self._check(read_request_texts(request), note) if self._guard.is_on else ""

    async def _check(self, texts: RequestTexts, note: Callable[[str], None]) -> str:
        """The rule of a flag, or an empty text. Raises Rejected."""
        ends_at = self._clock.now() + self._guard.cap_s
        scan = scan_texts(texts.outside, self._rules, max_chars=self._guard.max_chars,
                          is_late=lambda: self._clock.now() >= ends_at)
        is_complete, matches = scan.is_complete and texts.is_whole, list(scan.matches)
        if self._guard_classifier is not None and texts.question:
            try:
                matches += self._labelled(await self._guard_classifier.classify(texts.question, ends_at), texts)
            except (NoEmbedder, TimeoutError):
                is_complete = False
        actions = [(self._action(match), match) for match in matches]
        for wanted in (BLOCK, FLAG):
            for action, match in actions:
                if action == wanted:
                    return self._apply(action, match, note)
        if not is_complete:
            self._sink.emit(GuardDone(self._route, _UNFINISHED, ""))
            if self._guard.unfinished == "closed":
                raise Rejected("The guard of this route could not read the whole prompt within its limits of time and "
                               "length, or does not know its form, and the route rejects such prompts. Send a shorter "
                               "prompt, in the documented form of the API.", status=422, code="guard_unfinished")
            note("guard: not finished in its time or its length, or of an unknown form; continued without")
            return ""
        self._sink.emit(GuardDone(self._route, ALLOW, ""))
        return ""

    def _labelled(self, found: Classification, texts: RequestTexts) -> list[GuardMatch]:
        return [GuardMatch(f"{LABEL}.{found.label}", LABEL, 0, 0, len(texts.question))] if found.label in (
            *self._guard.block_labels, *self._guard.flag_labels) else []

    def _action(self, match: GuardMatch) -> str:
        if match.kind == LABEL:
            return BLOCK if match.rule.removeprefix(f"{LABEL}.") in self._guard.block_labels else FLAG
        return self._guard.secrets if match.kind == SECRET else self._guard.injections

    def _apply(self, action: str, match: GuardMatch, note: Callable[[str], None]) -> str:
        self._sink.emit(GuardDone(self._route, action, match.rule))
        note(f"guard: {action} by {match.rule}, text {match.text}, characters {match.start} to {match.end}")
        if action == BLOCK:
            raise Rejected(f"The guard of this route rejects the prompt by its rule {match.rule}. Remove what it names, or "
                           "ask the operator.", code="blocked_by_guard")
        return match.rule

    async def _choose_route(self, question: str, deadline: Deadline, note: Callable[[str], None]) -> str | None:
        classifier = self._route_classifier
        if classifier is None:
            return None
        label = UNKNOWN
        if question:
            try:
                found = await classifier.classify(question, deadline.at)
                label = found.label
                note(f"class {label} by {classifier.name}: p {found.p:.2f}, margin {found.margin:.2f}")
            except (NoEmbedder, TimeoutError):
                note(f"class unknown: classifier {classifier.name} is not ready")
        target = (self._routes.unknown if label == UNKNOWN else self._routes.routes.get(label, "")) or self._route
        self._sink.emit(RoutedByClass(self._route, label, target))
        return target if target != self._route else None
