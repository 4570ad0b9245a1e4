"""Few-shot examples that instructions mark as such."""

import pytest

from stayfast.policy.context.examples import measure_examples


@pytest.mark.parametrize(("text", "n"), [
    ("Do it.\n\n<example>\nin\n\nout\n</example>\n<example id='2'>x</example>", 2),
    ("Do it.\n\nExample 1:\nInput: a\nOutput: b\n\nExample 2:\nInput: c\nOutput: d\n\nEnd.", 2),
    ("Q: a\nA: b\nQ: c\nA: d", 2),
    ("### Example\none\n\n### Example\ntwo\n\n### Example\nthree", 3),
    ("For example, be brief.\n\nInput: what the user writes", 0),
    ("Example: one is no set of shots.", 0),
    ("", 0),
])
def test_measure_counts_marked_examples(text: str, n: int) -> None:
    found, n_chars = measure_examples(text)
    assert found == n
    assert (n_chars > 0) is (n > 0)
    assert n_chars <= len(text)
