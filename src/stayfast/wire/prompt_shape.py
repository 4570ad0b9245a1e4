"""The shape of a prompt: bytes by kind of part, counts, and digests of its beginning; never its text.

Source of the parts: `wire.prompt.PromptLayout`. The digests are Python's keyed hash of pieces of PIECE_BYTES, in the order
in which engines read the prompt; the key is random in each process, so a digest cannot be compared with a guessed text
elsewhere. Images are counted, and their bytes left out. Bodies over MAX_BYTES are not measured: 100 kB take
0.4 ms.
"""

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from stayfast.core.types import Request
from stayfast.wire.prompt import LAYOUT_APIS, MESSAGES, SYSTEM, TOOLS, PromptBlock, PromptLayout, read_prompt

MAX_BYTES: Final = 512 * 1024  # about 128,000 tokens
PIECE_BYTES: Final = 256
MAX_PIECES: Final = 1024  # the first 256 KiB
DETERMINISTIC_TEMPERATURE: Final = 0.3  # default of `cache.max_temperature`
_IMAGES: Final = frozenset(("image", "image_url", "input_image"))
_RESULTS: Final = frozenset(("tool_result", "search_result", "document", "function_call_output"))
_RESULT_ROLES: Final = frozenset(("tool", "function"))
_NO_BIAS: Final = (b"", b"null", b"{}")


class _Extra(Struct, gc=False):
    logit_bias: Raw = Raw(b"")
    temperature: Any = None
    seed: Any = None


class _Kind(Struct, gc=False):
    type: Any = None


_EXTRA: Final = msgspec.json.Decoder(_Extra)
_KIND: Final = msgspec.json.Decoder(_Kind)


class PromptOutline(Struct, frozen=True, gc=False):
    """Sizes in bytes of JSON. `n_last`: the messages after the model's last turn; `n_results`: the part of them that tools
    returned. `pieces`: digests of the beginning, of PIECE_BYTES each.
    """

    n_bytes: int = 0
    n_system: int = 0
    n_tools: int = 0
    n_history: int = 0
    n_last: int = 0
    n_results: int = 0
    n_messages: int = 0
    n_images: int = 0
    bias_digest: int | None = None  # None: no logit biases
    pieces: tuple[int, ...] = ()
    body_digest: int | None = None  # None: its answer may vary (DETERMINISTIC_TEMPERATURE, no seed)

    def shared_ratio(self, pieces: Sequence[int]) -> float | None:
        """The share of this prompt's measured beginning that equals the beginning of another; None: too short to tell."""
        if not self.pieces:
            return None
        n_equal = 0
        for one, other in zip(self.pieces, pieces, strict=False):
            if one != other:
                break
            n_equal += 1
        return n_equal / len(self.pieces)


def measure_prompt(request: Request) -> PromptOutline | None:
    """The shape of a validated request's prompt; None: too large, or of unknown form."""
    body = request.body
    if len(body) > MAX_BYTES:
        return None
    try:
        prompt = read_prompt(body).prompt
        extra = _EXTRA.decode(body)
        bias = bytes(extra.logit_bias)
        blocks = PromptLayout(body, request.api).blocks if request.api in LAYOUT_APIS else []
        sizes, n_images = _measure_blocks(blocks)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    n_last_from = _last_turn(blocks)
    last = [(block, size) for block, size in zip(blocks[n_last_from:], sizes[n_last_from:], strict=True)
            if block.section == MESSAGES]
    n_last = sum(size for _, size in last)
    n_of_messages = _total(blocks, sizes, MESSAGES)
    return PromptOutline(
        n_bytes=sum(sizes) if blocks else len(prompt),
        n_system=_total(blocks, sizes, SYSTEM), n_tools=_total(blocks, sizes, TOOLS),
        n_history=n_of_messages - n_last, n_last=n_last,
        n_results=sum(size for block, size in last if _is_result(block)),
        n_messages=len({block.at for block in blocks if block.section == MESSAGES}), n_images=n_images,
        bias_digest=None if bias in _NO_BIAS else crc32(bias), pieces=_digest_pieces(prompt),
        body_digest=hash(body) if _is_deterministic(extra) else None)


def _is_deterministic(extra: _Extra) -> bool:
    warmth = extra.temperature
    return extra.seed is not None or (isinstance(warmth, int | float) and warmth <= DETERMINISTIC_TEMPERATURE)


def _measure_blocks(blocks: Sequence[PromptBlock]) -> tuple[list[int], int]:
    """The bytes of each block without images, and the number of images."""
    sizes, n_images = [], 0
    for block in blocks:
        is_image = block.part >= 0 and block.data[:1] == b"{" and _kind_of(block) in _IMAGES
        n_images += is_image
        sizes.append(0 if is_image else len(block.data) + len(block.head))
    return sizes, n_images


def _kind_of(block: PromptBlock) -> str:
    kind = _KIND.decode(block.data).type if block.data[:1] == b"{" else None
    return kind if isinstance(kind, str) else ""


def _is_result(block: PromptBlock) -> bool:
    return block.role in _RESULT_ROLES or _kind_of(block) in _RESULTS


def _last_turn(blocks: Sequence[PromptBlock]) -> int:
    """The number of blocks up to the model's last turn; without one, up to the last message."""
    end = len(blocks)
    while end and blocks[end - 1].role == "assistant":
        end -= 1
    start = end
    while start and blocks[start - 1].role != "assistant":
        start -= 1
    if start or not end:
        return start
    last_at = blocks[end - 1].at
    while end and blocks[end - 1].at == last_at and blocks[end - 1].section == MESSAGES:
        end -= 1
    return end


def _total(blocks: Sequence[PromptBlock], sizes: Sequence[int], section: int) -> int:
    return sum(size for block, size in zip(blocks, sizes, strict=True) if block.section == section)


def _digest_pieces(prompt: bytes) -> tuple[int, ...]:
    n = min(len(prompt) // PIECE_BYTES, MAX_PIECES)
    return tuple([hash(prompt[at * PIECE_BYTES:(at + 1) * PIECE_BYTES]) for at in range(n)])
