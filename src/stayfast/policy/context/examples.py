"""Few-shot examples in instructions: how many, and how long.

Problem: examples are the longest part of many system prompts, and stay after the model no longer needs them. Rule: count
what is marked as an example: <example> elements, paragraphs that begin with "Example", and pairs of input and output.

Source: the marks are those that the providers' guides to prompts recommend. When wrong: no figure of a gateway shows whether
an example is of use, since a model reads all of them each time; unmarked examples are not counted. So the finding names
their cost only, and the way to find out: the same evaluation without them.
"""

import re
from typing import Final

MIN_EXAMPLES: Final = 2  # one pair of "Input:" and "Output:" may be a form to fill in
_ELEMENT: Final = re.compile(r"<example\b[^>]*>.*?</example>", re.DOTALL | re.IGNORECASE)
_HEADING: Final = re.compile(r"^[#*_\s]*(?:few-shot )?examples?\b[ \d.:#*_-]*\n?.*?(?=\n[ \t]*\n|\Z)",
                             re.DOTALL | re.MULTILINE | re.IGNORECASE)
_PAIR: Final = re.compile(
    r"^\W*(input|user|question|q|human)\s*:.*?^\W*(output|assistant|answer|a|ai)\s*:.*?(?=\n[ \t]*\n|^\W*\1\s*:|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE)


def measure_examples(text: str) -> tuple[int, int]:
    """The number of marked examples and their characters; (0, 0) for fewer than MIN_EXAMPLES."""
    spans = [found.span() for pattern in (_ELEMENT, _PAIR, _HEADING) for found in pattern.finditer(text)]
    n, n_chars, end = 0, 0, -1
    for start, stop in sorted(spans):
        if start >= end:
            n += 1
        n_chars += max(0, stop - max(start, end))
        end = max(end, stop)
    return (n, n_chars) if n >= MIN_EXAMPLES else (0, 0)
