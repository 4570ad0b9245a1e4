"""The prompt cache of a simulated provider, by the published rules of the vendors.

    anthropic    stores the prefixes that end at a mark (at most four) and have `min_tokens`; reads the longest stored
                 prefix that ends at a mark or up to 20 blocks before it; a fifth mark, or one on thinking, is a 400
    breakpoints  stores the prefixes that end at the latest message and the latest three marks (`mode: explicit`: at marks
                 only); reads the longest stored prefix. OpenAI since GPT-5.6
    automatic    reads the longest recently sent prefix, in steps of 128 tokens; a mark is a 400. OpenAI before that

An entry can be read as soon as the answer of its request begins, and for `ttl_s` after its last use. At OpenAI the key and
the start of a prompt select a machine; above `machine_rpm` requests a minute, the rest goes to another machine without these
entries.
Source: docs/concepts/prompt-layout.md. When wrong: how real requests overflow is not public, and entries may be evicted
earlier.
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
from stayfast.lab.simulated.filler_text import count_tokens
from stayfast.wire.prompt import LAYOUT_APIS, PromptBlock, PromptLayout, read_prompt
from stayfast.wire.request_body import decode_typed
from stayfast.wire.usage import TOKENS_PER_IMAGE

CacheRules = Literal["anthropic", "breakpoints", "automatic"]
MAX_MARKS: Final = 4
STEP_TOKENS: Final = 128  # granularity of the automatic cache
_IMAGES: Final = ("image", "image_url", "input_image")
_UNCOUNTED_FIELDS: Final = frozenset((
    "type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "cache_control", "prompt_cache_breakpoint"))
_UNMARKABLE: Final = frozenset(("thinking", "redacted_thinking"))
_ANY: Final = msgspec.json.Decoder()
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


class CachedPrompt(msgspec.Struct, frozen=True, gc=False):
    """A prompt as a prefix cache sees it. `links[n]`: the chained hash of its first n + 1 blocks, which have `tokens[n]`
    tokens. `marks`: the number of blocks before each mark, in order, and its time to live. `fault`: why the provider rejects
    the prompt; empty: it does not.
    """

    links: tuple[int, ...]
    tokens: tuple[int, ...]
    marks: tuple[tuple[int, str], ...] = ()
    kind: int = 0  # hash of model, key and first block: equal ones go to the same machine
    n_end: int = 0  # blocks up to the end of the latest message
    is_explicit: bool = False  # store marked prefixes only
    fault: str = ""


def n_tokens(value: Any) -> int:
    if isinstance(value, str):
        return count_tokens(value)
    if isinstance(value, list):
        return sum(n_tokens(item) for item in value)
    if isinstance(value, dict):
        if value.get("type") in _IMAGES:
            return TOKENS_PER_IMAGE
        return sum(n_tokens(item) for name, item in value.items() if name not in _UNCOUNTED_FIELDS)
    return 1 if isinstance(value, int) else 0  # a prompt may be a list of token ids


def parse_prompt(body: bytes, api: Api, model: str, rules: CacheRules) -> CachedPrompt | None:
    """The prompt of a request under these rules; None for an API without a prompt cache."""
    if api not in LAYOUT_APIS:
        return None
    parsed = decode_typed(_ANY, body)
    link = hash((model, parsed.get("prompt_cache_key")))
    if rules == "automatic":
        is_new = b'"prompt_cache_breakpoint"' in body or "prompt_cache_options" in parsed
        fault = "Unknown parameter: prompt_cache_breakpoint." if is_new else ""
        return _prompt_in_steps(read_prompt(body).prompt, link, fault)
    laid = PromptLayout(body, api)
    links, tokens, marks, n_all, fault = [], [], [], 0, ""
    for n, block in enumerate(laid.blocks, 1):
        value, ttl, why = _parse_block(block, laid.api)
        link = hash((link, block.head, _encode(value)))
        n_all += n_tokens(value) if block.section else len(block.data) // BYTES_A_TOKEN
        links.append(link)
        tokens.append(n_all)
        fault = fault or (f"{laid.format_path(n - 1)}: {why}" if why else "")
        if ttl:
            marks.append((n, ttl))
    if rules == "anthropic":
        if "cache_control" in parsed and (last := laid.n_markable_blocks(len(laid.blocks))):
            marks.append((last, parsed["cache_control"].get("ttl", "5m")))
        fault = fault or _check_marks(marks)
    options = parsed.get("prompt_cache_options")
    is_explicit = isinstance(options, dict) and options.get("mode") == "explicit"
    return CachedPrompt(tuple(links), tuple(tokens), tuple(marks), links[0] if links else link, laid.n_end, is_explicit,
                        fault)


def _parse_block(block: PromptBlock, api: Api) -> tuple[Any, str, str]:
    """The block without its mark, the time to live of the mark, and the error of a misplaced mark."""
    value = decode_typed(_ANY, block.data)
    if isinstance(value, str):
        return {"type": "input_text" if api is Api.RESPONSES else "text", "text": value}, "", ""
    if not isinstance(value, dict):
        return value, "", ""
    mark = value.pop("cache_control", None) if api is Api.MESSAGES else value.pop("prompt_cache_breakpoint", None)
    if not isinstance(mark, dict):
        return value, "", ""
    if api is not Api.MESSAGES:
        return value, "30m", "" if block.role != "assistant" else "a breakpoint cannot be in an assistant message"
    if value.get("type") in _UNMARKABLE:
        return value, "5m", f"cache_control cannot be set for {value['type']} blocks"
    if value.get("type") == "text" and not value.get("text"):
        return value, "5m", "cache_control cannot be set for empty text blocks"
    return value, mark.get("ttl", "5m"), ""


def _check_marks(marks: list[tuple[int, str]]) -> str:
    if len(marks) > MAX_MARKS:
        return f"A maximum of {MAX_MARKS} blocks with cache_control may be provided. Found {len(marks)}."
    lives = [ttl for _, ttl in marks]
    if "1h" in lives and "5m" in lives[:lives.index("1h")]:
        return "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
    return ""


def _prompt_in_steps(prompt: bytes, link: int, fault: str) -> CachedPrompt:
    step = STEP_TOKENS * BYTES_A_TOKEN
    links = []
    for at in range(0, len(prompt) - step + 1, step):
        link = hash((link, crc32(prompt[at:at + step])))
        links.append(link)
    tokens = tuple(STEP_TOKENS * n for n in range(1, len(links) + 1))
    return CachedPrompt(tuple(links), tokens, kind=links[1] if len(links) > 1 else link, n_end=len(links), fault=fault)


LOOKBACK_BLOCKS: Final = 20  # blocks
MAX_EXPLICIT_WITH_IMPLICIT: Final = 3
HOUR_S: Final = 3600.0
MINUTE_S: Final = 60.0
MAX_ENTRIES: Final = 200_000


@dataclass(frozen=True, slots=True)
class PromptCacheModel:
    """The rules and figures of a prompt cache. Factors are of the price of uncached input."""

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
        """The cost of a prompt, in tokens of uncached input."""
        n_plain = n_prompt - found.n_read - found.n_written - found.n_written_1h
        return (n_plain + found.n_read * self.read_factor + found.n_written * self.write_factor
                + found.n_written_1h * self.write_1h_factor)


Entry = tuple[int, int]  # link and machine


class CacheLookup(msgspec.Struct, frozen=True, gc=False):
    """The result of a lookup, in tokens. `entries`: to be stored when the answer begins, with their time to live."""

    n_read: int = 0
    n_written: int = 0
    n_written_1h: int = 0
    entries: tuple[tuple["Entry", float], ...] = ()


class PromptCache:
    """The prompt cache of one provider. Single loop."""

    __slots__ = ("_clock", "_entries", "_rates", "model")

    def __init__(self, model: PromptCacheModel, clock: Clock) -> None:
        self.model = model
        self._clock = clock
        self._entries: dict[Entry, tuple[float, float]] = {}  # expiry instant and time to live; least recently used first
        self._rates: dict[int, tuple[int, int]] = {}  # per kind: the minute, and its number of requests

    def find_prefix(self, prompt: CachedPrompt, n_prompt: int) -> CacheLookup:
        """Find the longest cached prefix of a prompt of `n_prompt` tokens, and renew the entries read."""
        rules, machine = self.model.rules, self._pick_machine(prompt)
        if rules == "automatic":
            return self._find_automatic_prefix(prompt, n_prompt, machine)
        marks, links, tokens = self._marks_to_store(prompt), prompt.links, prompt.tokens
        depth = LOOKBACK_BLOCKS if rules == "anthropic" else len(links)
        n_known = max((self._longest_known(prompt, n, depth, machine) for n, _ in marks), default=0)
        cacheable = [(n, keeps_s) for n, keeps_s in marks if tokens[n - 1] >= self.model.min_tokens]
        for n in {n_known, *(n for n, _ in cacheable if n <= n_known)} - {0}:
            entry = links[n - 1], machine
            if (used := self._entries.pop(entry, None)) is not None:
                self._entries[entry] = self._clock.now() + used[1], used[1]
        new = [(n, keeps_s) for n, keeps_s in cacheable if n > n_known]
        n_read = tokens[n_known - 1] if n_known else 0
        n_all = max((tokens[n - 1] for n, _ in new), default=n_read)
        n_long = max((tokens[n - 1] for n, keeps_s in new if keeps_s >= HOUR_S and rules == "anthropic"), default=n_read)
        entries = tuple(((links[n - 1], machine), keeps_s) for n, keeps_s in new)
        return CacheLookup(n_read, n_all - n_long, n_long - n_read, entries)

    def record_answer_start(self, found: CacheLookup) -> None:
        """The answer begins: store its entries."""
        now = self._clock.now()
        for entry, keeps_s in found.entries:
            self._entries.pop(entry, None)
            self._entries[entry] = (now + keeps_s, keeps_s)
        while len(self._entries) > MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]

    def _marks_to_store(self, prompt: CachedPrompt) -> list[tuple[int, float]]:
        """The block counts after which a prefix is stored, in order, with their time to live."""
        if self.model.rules == "anthropic":
            return [(n, HOUR_S if ttl == "1h" else self.model.ttl_s) for n, ttl in prompt.marks]
        explicit = [n for n, _ in prompt.marks]
        if not prompt.is_explicit:
            explicit = explicit[-MAX_EXPLICIT_WITH_IMPLICIT:] + ([prompt.n_end] if prompt.n_end else [])
        return [(n, self.model.ttl_s) for n in sorted(set(explicit))]

    def _pick_machine(self, prompt: CachedPrompt) -> int:
        """The machine that a prompt of this kind goes to."""
        if self.model.rules == "anthropic":
            return 0
        minute = int(self._clock.now() // MINUTE_S)
        at, n = self._rates.get(prompt.kind, (minute, 0))
        n = n if at == minute else 0
        self._rates[prompt.kind] = (minute, n + 1)
        return n // self.model.machine_rpm

    def _longest_known(self, prompt: CachedPrompt, n: int, depth: int, machine: int) -> int:
        """The longest stored prefix of the first `n` blocks, at most `depth` blocks shorter; 0: none."""
        now = self._clock.now()
        return next((at for at in range(n, max(0, n - depth), -1)
                     if self._entries.get((prompt.links[at - 1], machine), (-inf, 0.0))[0] > now), 0)

    def _find_automatic_prefix(self, prompt: CachedPrompt, n_prompt: int, machine: int) -> CacheLookup:
        n_steps, keeps_s = len(prompt.links), self.model.ttl_s
        n_known = self._longest_known(prompt, n_steps, n_steps, machine)
        n_read = int(n_known / n_steps * n_prompt) // STEP_TOKENS * STEP_TOKENS if n_known else 0
        entries = tuple(((link, machine), keeps_s) for link in prompt.links)
        return CacheLookup(n_read if n_read >= self.model.min_tokens else 0, entries=entries)
