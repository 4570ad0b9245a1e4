"""The difference of two versions of a prompt: as hunks of positions and kinds, and as a unified diff for those who may read.

Only the diff holds text. Cost: milliseconds for prompts of a thousand lines; not for the path of a request.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher, unified_diff
from typing import Final

from stayfast.core.prompt_versions import PromptComparison, PromptHunk
from stayfast.wire.prompt_head import PromptHead, format_head, kind_of_change

MAX_LINES: Final = 4000  # of each; longer prompts are compared up to here
MAX_HUNKS: Final = 50
CONTEXT_LINES: Final = 2


def compare_heads(before: PromptHead | None, after: PromptHead, names: tuple[str, str], *, has_text: bool
                  ) -> PromptComparison:
    """names: of both. has_text: with the text of `after`, and the diff."""
    new = format_head(after)[:MAX_LINES]
    text = tuple(new) if has_text else None
    if before is None:
        return PromptComparison(text=text)
    old = format_head(before)[:MAX_LINES]
    hunks = _find_hunks(old, new)
    diff = tuple(unified_diff(old, new, *names, n=CONTEXT_LINES, lineterm="")) if has_text else None
    return PromptComparison(names[0], tuple(hunks[:MAX_HUNKS]), len(hunks), text, diff)


def _find_hunks(old: Sequence[str], new: Sequence[str]) -> list[PromptHunk]:
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [PromptHunk(_kind(old[a:b], new[c:d]), a + 1, b - a, c + 1, d - c)
            for what, a, b, c, d in matcher.get_opcodes() if what != "equal"]


def _kind(old: Sequence[str], new: Sequence[str]) -> str:
    return kind_of_change("\n".join(old).encode(), "\n".join(new).encode())
