"""What a provider remembers of prompts, by the rules that providers publish.

    anthropic    kept is what ends at one of at most four marks and has `min_tokens`; read is the longest beginning kept
                 that ends at a mark or up to 20 blocks before it; a fifth mark, or one on thinking, is a 400
    breakpoints  kept is what ends at the latest message and at the latest three marks (with `mode: explicit` only at marks);
                 read is the longest beginning kept. OpenAI, from GPT-5.6 on
    automatic    read is the longest beginning sent lately, in steps of 128 tokens; a mark is a 400. OpenAI before that

What is kept can be read from the first token of the answer on that wrote it, and for `ttl_s` after it was last used.
At OpenAI a prompt goes to the machine that its key and its beginning lead to, and of more than `machine_rpm` in a minute the
others go to the next one, which remembers nothing of them.
Source: docs/concepts/prompt-layout.md. When wrong: how real requests overflow is not public, and entries may go earlier.

A prompt as a provider's cache of prefixes sees it: what it begins with, how long that is, and what is marked in it.
"""

from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Final, Literal, get_args
from zlib import crc32

import msgspec

from stayfast.core.clock import Clock
from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.setting import SettingDoc, check_bounds
from stayfast.core.types import Api
from stayfast.lab.simulated.filler_text import n_tokens_in
from stayfast.wire.json_input import typed
from stayfast.wire.prompt import LAID_OUT, PromptBlock, PromptLayout, read_prompt
from stayfast.wire.usage import TOKENS_AN_IMAGE

CacheRules = Literal["anthropic", "breakpoints", "automatic"]
MOST_MARKS: Final = 4
STEP_TOKENS: Final = 128  # what an automatic cache counts in
_IMAGES: Final = ("image", "image_url", "input_image")
_NOT_SAID: Final = frozenset((
    "type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "cache_control", "prompt_cache_breakpoint"))
_UNMARKABLE: Final = frozenset(("thinking", "redacted_thinking"))
_ANY: Final = msgspec.json.Decoder()
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


class CachedPrompt(msgspec.Struct, frozen=True, gc=False):
    """`links[n]` stands for its first n + 1 blocks, which have `tokens[n]` tokens; marks by the number of blocks that they
    close, in order, with their time to live. `fault`: why the provider refuses it; empty: it does not."""

    links: tuple[int, ...]
    tokens: tuple[int, ...]
    marks: tuple[tuple[int, str], ...] = ()
    kind: int = 0  # of requests that go to the same machine: model, key and what the prompt begins with
    n_end: int = 0  # blocks up to where the model goes on
    is_explicit: bool = False  # only what is marked is to be kept
    fault: str = ""


def n_tokens(value: Any) -> int:
    if isinstance(value, str):
        return n_tokens_in(value)
    if isinstance(value, list):
        return sum(n_tokens(item) for item in value)
    if isinstance(value, dict):
        if value.get("type") in _IMAGES:
            return TOKENS_AN_IMAGE
        return sum(n_tokens(item) for name, item in value.items() if name not in _NOT_SAID)
    return 1 if isinstance(value, int) else 0  # prompts and inputs may be tokens


def prompt_of(body: bytes, api: Api, model: str, rules: CacheRules) -> CachedPrompt | None:
    """A decoded request's prompt under these rules; None for an API that has no such cache."""
    if api not in LAID_OUT:
        return None
    parsed = typed(_ANY, body)
    link = hash((model, parsed.get("prompt_cache_key")))
    if rules == "automatic":
        is_new = b'"prompt_cache_breakpoint"' in body or "prompt_cache_options" in parsed
        return _in_steps(read_prompt(body).prompt, link, "Unknown parameter: prompt_cache_breakpoint." if is_new else "")
    laid = PromptLayout(body, api)
    links, tokens, marks, n_all, fault = [], [], [], 0, ""
    for n, block in enumerate(laid.blocks, 1):
        value, ttl, why = _read(block, laid.api)
        link = hash((link, block.head, _encode(value)))
        n_all += n_tokens(value) if block.place else len(block.data) // BYTES_A_TOKEN
        links.append(link)
        tokens.append(n_all)
        fault = fault or (f"{laid.where(n - 1)}: {why}" if why else "")
        if ttl:
            marks.append((n, ttl))
    if rules == "anthropic":
        if "cache_control" in parsed and (last := laid.markable(len(laid.blocks))):
            marks.append((last, parsed["cache_control"].get("ttl", "5m")))
        fault = fault or _refusal(marks)
    options = parsed.get("prompt_cache_options")
    is_explicit = isinstance(options, dict) and options.get("mode") == "explicit"
    return CachedPrompt(tuple(links), tuple(tokens), tuple(marks), links[0] if links else link, laid.n_end, is_explicit,
                        fault)


def _read(block: PromptBlock, api: Api) -> tuple[Any, str, str]:
    """What a block says whether or not it is marked, its mark's time to live, and what is wrong with the mark."""
    value = typed(_ANY, block.data)
    if isinstance(value, str):
        return {"type": "input_text" if api is Api.RESPONSES else "text", "text": value}, "", ""
    if not isinstance(value, dict):
        return value, "", ""
    mark = value.pop("cache_control", None) if api is Api.MESSAGES else value.pop("prompt_cache_breakpoint", None)
    if not isinstance(mark, dict):
        return value, "", ""
    if api is not Api.MESSAGES:
        return value, "30m", "" if block.role != "assistant" else "a breakpoint cannot stand on what the model said"
    if value.get("type") in _UNMARKABLE:
        return value, "5m", f"cache_control cannot be set for {value['type']} blocks"
    if value.get("type") == "text" and not value.get("text"):
        return value, "5m", "cache_control cannot be set for empty text blocks"
    return value, mark.get("ttl", "5m"), ""


def _refusal(marks: list[tuple[int, str]]) -> str:
    if len(marks) > MOST_MARKS:
        return f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {len(marks)}."
    lives = [ttl for _, ttl in marks]
    if "1h" in lives and "5m" in lives[:lives.index("1h")]:
        return "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
    return ""


def _in_steps(prompt: bytes, link: int, fault: str) -> CachedPrompt:
    step = STEP_TOKENS * BYTES_A_TOKEN
    links = []
    for at in range(0, len(prompt) - step + 1, step):
        link = hash((link, crc32(prompt[at:at + step])))
        links.append(link)
    tokens = tuple(STEP_TOKENS * n for n in range(1, len(links) + 1))
    return CachedPrompt(tuple(links), tokens, kind=links[1] if len(links) > 1 else link, n_end=len(links), fault=fault)


LOOK_BACK: Final = 20  # blocks
EXPLICIT_BESIDE_IMPLICIT: Final = 3
HOUR_S: Final = 3600.0
MINUTE_S: Final = 60.0
MAX_ENTRIES: Final = 200_000


@dataclass(frozen=True, slots=True)
class PromptCacheModel:
    """Whose rules, and their figures. Factors are of the price of plain input."""

    rules: Annotated[CacheRules, SettingDoc(
        "anthropic: marked prefixes. breakpoints: OpenAI's since GPT-5.6. automatic: OpenAI's before.")] = "anthropic"
    min_tokens: Annotated[int, SettingDoc("Shortest prefix that is cached.", minimum=0, maximum=1000000)] = 1024
    ttl_s: Annotated[float, SettingDoc(
        "Lifetime of an entry after its last use (1h entries: an hour).", more_than=0, maximum=86_400)] = 300.0
    read_factor: Annotated[float, SettingDoc(
        "Price of a read token, relative to plain input.", minimum=0, maximum=100)] = 0.1
    write_factor: Annotated[float, SettingDoc("Price of a written token.", minimum=0, maximum=100)] = 1.25
    write_1h_factor: Annotated[float, SettingDoc("Price of a token written for an hour.", minimum=0, maximum=100)] = 2.0
    machine_rpm: Annotated[int, SettingDoc(
        "OpenAI's rules: prompts per minute with one key and prefix before another machine takes over. Assumed.",
        minimum=1)] = 15

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.rules not in get_args(CacheRules):
            raise ValueError(f"rules must be one of {', '.join(get_args(CacheRules))}, not {self.rules!r}")

    def plain_tokens(self, n_prompt: int, found: "CacheLookup") -> float:
        """What a prompt costs, in tokens of plain input."""
        n_plain = n_prompt - found.n_read - found.n_written - found.n_written_1h
        return (n_plain + found.n_read * self.read_factor + found.n_written * self.write_factor
                + found.n_written_1h * self.write_1h_factor)


Entry = tuple[int, int]  # a link, and the machine that has it


class CacheLookup(msgspec.Struct, frozen=True, gc=False):
    """What became of one prompt, in tokens. `entries`: what is to be kept, and for how long, once its answer begins."""

    n_read: int = 0
    n_written: int = 0
    n_written_1h: int = 0
    entries: tuple[tuple["Entry", float], ...] = ()


class PromptCache:
    """One provider's. Changed on one loop."""

    __slots__ = ("_clock", "_entries", "_rates", "model")

    def __init__(self, model: PromptCacheModel, clock: Clock) -> None:
        self.model = model
        self._clock = clock
        self._entries: dict[Entry, tuple[float, float]] = {}  # until when, and for how long at each use; oldest use first
        self._rates: dict[int, tuple[int, int]] = {}  # of a kind: the minute, and how many came in it

    def look_up(self, prompt: CachedPrompt, n_prompt: int) -> CacheLookup:
        """Read what is kept of a prompt of so many tokens. What is read is kept longer."""
        rules, machine = self.model.rules, self._machine(prompt)
        if rules == "automatic":
            return self._in_steps(prompt, n_prompt, machine)
        marks, links, tokens = self._marks(prompt), prompt.links, prompt.tokens
        depth = LOOK_BACK if rules == "anthropic" else len(links)
        n_known = max((self._known(prompt, n, depth, machine) for n, _ in marks), default=0)
        cacheable = [(n, keeps_s) for n, keeps_s in marks if tokens[n - 1] >= self.model.min_tokens]
        for n in {n_known, *(n for n, _ in cacheable if n <= n_known)} - {0}:
            entry = links[n - 1], machine
            if (used := self._entries.pop(entry, None)) is not None:
                self._entries[entry] = self._clock.now() + used[1], used[1]
        new = [(n, keeps_s) for n, keeps_s in cacheable if n > n_known]
        n_read = tokens[n_known - 1] if n_known else 0
        n_all = max((tokens[n - 1] for n, _ in new), default=n_read)
        n_long = max((tokens[n - 1] for n, keeps_s in new if keeps_s >= HOUR_S and rules == "anthropic"), default=n_read)
        return CacheLookup(n_read, n_all - n_long, n_long - n_read,
                      tuple(((links[n - 1], machine), keeps_s) for n, keeps_s in new))

    def began(self, found: CacheLookup) -> None:
        """The answer begins: what it wrote can be read from now on."""
        now = self._clock.now()
        for entry, keeps_s in found.entries:
            self._entries.pop(entry, None)
            self._entries[entry] = (now + keeps_s, keeps_s)
        while len(self._entries) > MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]

    def _marks(self, prompt: CachedPrompt) -> list[tuple[int, float]]:
        """Where something is to be kept, in order, and for how long."""
        if self.model.rules == "anthropic":
            return [(n, HOUR_S if ttl == "1h" else self.model.ttl_s) for n, ttl in prompt.marks]
        explicit = [n for n, _ in prompt.marks]
        if not prompt.is_explicit:
            explicit = explicit[-EXPLICIT_BESIDE_IMPLICIT:] + ([prompt.n_end] if prompt.n_end else [])
        return [(n, self.model.ttl_s) for n in sorted(set(explicit))]

    def _machine(self, prompt: CachedPrompt) -> int:
        """Which one of those for its kind a prompt goes to."""
        if self.model.rules == "anthropic":
            return 0
        minute = int(self._clock.now() // MINUTE_S)
        at, n = self._rates.get(prompt.kind, (minute, 0))
        n = n if at == minute else 0
        self._rates[prompt.kind] = (minute, n + 1)
        return n // self.model.machine_rpm

    def _known(self, prompt: CachedPrompt, n: int, depth: int, machine: int) -> int:
        """The longest beginning that is kept, of the first `n` blocks or up to `depth` less."""
        now = self._clock.now()
        return next((at for at in range(n, max(0, n - depth), -1)
                     if self._entries.get((prompt.links[at - 1], machine), (-inf, 0.0))[0] > now), 0)

    def _in_steps(self, prompt: CachedPrompt, n_prompt: int, machine: int) -> CacheLookup:
        n_steps, keeps_s = len(prompt.links), self.model.ttl_s
        n_known = self._known(prompt, n_steps, n_steps, machine)
        n_read = int(n_known / n_steps * n_prompt) // STEP_TOKENS * STEP_TOKENS if n_known else 0
        entries = tuple(((link, machine), keeps_s) for link in prompt.links)
        return CacheLookup(n_read if n_read >= self.model.min_tokens else 0, entries=entries)
