"""System prompts by version, as a snapshot shows them: digests, sizes, positions and kinds; never their text."""

import msgspec


class PromptPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """A byte of a prompt. path: of the block, such as messages[0].content. at: in the block's JSON, whose first byte is 0.

    kind: what stands there: a date, a time, a UUID, a timestamp, an id, a number, text, or order (of the tools).
    """

    path: str
    at: int
    kind: str
    ratio: float = 0.0  # of the instructions and tools that stand before this byte
    n_tokens_after: float = 0.0  # of the instructions and tools, which a prefix cache computes again


class PromptChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a version differs from the one before it. Bytes between the first and the last changed one."""

    before: str  # id of that version
    place: PromptPlace  # the first changed byte
    n_removed: int = 0
    n_added: int = 0


class RepeatedPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A paragraph that repeats an earlier one of the same instructions. at: bytes of the block's text, in UTF-8."""

    path: str
    at: int
    first_path: str
    first_at: int
    n_tokens: float
    overlap: float = 1.0  # of their shingles; 1.0: equal


class OfferedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool of a version. n_calls: those in the sampled conversations."""

    name: str
    n_tokens: float
    n_calls: int = 0


class PromptVersionRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of a route's instructions and tools. Figures are of the last hour, instants seconds since the epoch."""

    route: str
    id: str  # sha256 of the normalised blocks, in hex
    system_id: str = ""  # of the instructions alone; empty: there are none
    tools_id: str = ""
    first_at: float = 0.0
    last_at: float = 0.0
    n_bytes: int = 0
    n_tokens: float = 0.0  # estimated; of instructions and tools
    system_tokens: float = 0.0
    tool_tokens: float = 0.0
    n: int = 0  # requests
    n_a_day: float | None = None  # None: seen for too short a time
    share_of_prompt: float | None = None  # of the input tokens
    cached_ratio: float | None = None  # of its tokens, read from the provider's cache
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    usd_a_day: float | None = None  # what its tokens cost; None: no price is known
    usd_per_mtok: float | None = None  # of input
    usd_per_mtok_read: float | None = None
    change: PromptChange | None = None  # None: no earlier version resembles it
    moving: PromptPlace | None = None  # None: nothing changes between requests
    n_samples: int = 0  # sampled requests
    n_moved: int = 0  # of these, with other bytes than the one before
    repeats: tuple[RepeatedPart, ...] = ()
    tools: tuple[OfferedTool, ...] = ()
    n_tool_ends: int = 0  # answers that ended with a call of a tool
    n_examples: int = 0
    example_tokens: float = 0.0


class PromptHunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lines that differ between two versions. Lines are those of the readable form, from 1; kind: as of a `PromptPlace`."""

    kind: str
    before_line: int
    n_removed: int
    after_line: int
    n_added: int


class PromptComparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """Two versions compared. hunks: None without the text of both. Texts: None unless the settings show them."""

    before: str = ""
    hunks: tuple[PromptHunk, ...] | None = None
    n_hunks: int = 0
    text: tuple[str, ...] | None = None
    diff: tuple[str, ...] | None = None


class PromptReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version: its figures, its difference, what that costs. usd: a day more than `before`, at the rate of `row`."""

    row: PromptVersionRow
    before: PromptVersionRow | None = None
    comparison: PromptComparison = PromptComparison()
    usd_longer: float | None = None
    usd_read_less: float | None = None


class PromptList(msgspec.Struct, frozen=True):
    """All versions, by route and in the order of first use."""

    data: tuple[PromptVersionRow, ...]
    object: str = "list"
