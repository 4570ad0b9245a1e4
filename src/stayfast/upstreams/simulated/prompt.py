"""A prompt as a provider's cache of prefixes sees it: what it begins with, how long that is, and what is marked in it."""

from typing import Any, Final, Literal
from zlib import crc32

import msgspec

from stayfast.core.constants import BYTES_A_TOKEN
from stayfast.core.types import Api
from stayfast.upstreams.simulated.speech import n_tokens_in
from stayfast.wire.prompt import LAID_OUT, Block, Laid, asked
from stayfast.wire.tokens import TOKENS_AN_IMAGE

CacheRules = Literal["anthropic", "breakpoints", "automatic"]
MOST_MARKS: Final = 4
STEP_TOKENS: Final = 128  # what an automatic cache counts in
_IMAGES: Final = ("image", "image_url", "input_image")
_NOT_SAID: Final = frozenset((
    "type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "cache_control", "prompt_cache_breakpoint"))
_UNMARKABLE: Final = frozenset(("thinking", "redacted_thinking"))
_ANY: Final = msgspec.json.Decoder()
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """`links[n]` stands for its first n + 1 blocks, which have `tokens[n]` tokens; marks by the number of blocks that they
    close, in order, with their time to live. `fault`: why the provider refuses it; empty: it does not.
    """

    links: tuple[int, ...]
    tokens: tuple[int, ...]
    marks: tuple[tuple[int, str], ...] = ()
    kind: int = 0  # of requests that go to the same machine: model, key and what the prompt begins with
    n_end: int = 0  # blocks up to where the model goes on
    is_explicit: bool = False  # only what is marked is to be kept
    fault: str = ""


def n_tokens(value: Any) -> int:
    """Tokens of all that is said in a decoded prompt."""
    if isinstance(value, str):
        return n_tokens_in(value)
    if isinstance(value, list):
        return sum(n_tokens(item) for item in value)
    if isinstance(value, dict):
        if value.get("type") in _IMAGES:
            return TOKENS_AN_IMAGE
        return sum(n_tokens(item) for name, item in value.items() if name not in _NOT_SAID)
    return 1 if isinstance(value, int) else 0  # prompts and inputs may be tokens


def prompt_of(body: bytes, api: Api, model: str, rules: CacheRules) -> Prompt | None:
    """A decoded request's prompt under these rules; None for an API that has no such cache."""
    if api not in LAID_OUT:
        return None
    said = _ANY.decode(body)
    link = hash((model, said.get("prompt_cache_key")))
    if rules == "automatic":
        is_new = b'"prompt_cache_breakpoint"' in body or "prompt_cache_options" in said
        return _in_steps(asked(body).prompt, link,
                         "Unknown parameter: prompt_cache_breakpoint." if is_new else "")
    laid = Laid(body, api)
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
        if "cache_control" in said and (last := laid.markable(len(laid.blocks))):
            marks.append((last, said["cache_control"].get("ttl", "5m")))
        fault = fault or _refusal(marks)
    options = said.get("prompt_cache_options")
    is_explicit = isinstance(options, dict) and options.get("mode") == "explicit"
    return Prompt(tuple(links), tuple(tokens), tuple(marks), links[0] if links else link, laid.n_end, is_explicit,
                  fault)


def _read(block: Block, api: Api) -> tuple[Any, str, str]:
    """What a block says whether or not it is marked, its mark's time to live, and what is wrong with the mark."""
    value = _ANY.decode(block.data)
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
    """What Anthropic says to these marks."""
    if len(marks) > MOST_MARKS:
        return f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {len(marks)}."
    lives = [ttl for _, ttl in marks]
    if "1h" in lives and "5m" in lives[:lives.index("1h")]:
        return "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
    return ""


def _in_steps(prompt: bytes, link: int, fault: str) -> Prompt:
    step = STEP_TOKENS * BYTES_A_TOKEN
    links = []
    for at in range(0, len(prompt) - step + 1, step):
        link = hash((link, crc32(prompt[at:at + step])))
        links.append(link)
    tokens = tuple(STEP_TOKENS * n for n in range(1, len(links) + 1))
    return Prompt(tuple(links), tokens, kind=links[1] if len(links) > 1 else link, n_end=len(links), fault=fault)
