"""policy/routing/learned_prompts: from the text of a prompt to its tokens."""

from hypothesis import given
from hypothesis import strategies as st

from stayfast.policy.routing.affinity import hash_blocks
from stayfast.policy.routing.learned_prompts import LearnedPrompts

BYTES = 16  # of a text block here


def tokenize(text: bytes) -> list[int]:
    """Digits are tokens of their own; other texts have four bytes a token. The template adds two tokens at the end."""
    found, rest = [], b""
    for at in range(len(text)):
        rest += text[at:at + 1]
        if len(rest) == 4 or rest[:1].isdigit():
            found.append(int.from_bytes(rest, "big") & 0x7FFFFFFF)
            rest = b""
    return [*found, 1, 2]


def learn(prompts: LearnedPrompts, text: bytes) -> list[int]:
    blocks = hash_blocks(text, block_bytes=BYTES)
    prompts.learn(blocks, len(text), tokenize(text), BYTES)
    return blocks


def test_find_unknown_prompt_is_none() -> None:
    assert LearnedPrompts().find(hash_blocks(b"x" * 100, block_bytes=BYTES)) is None


def test_find_prompt_that_continues_a_known_one_has_its_tokens() -> None:
    prompts, text = LearnedPrompts(), b"a" * 160
    learn(prompts, text)
    known = prompts.find(hash_blocks(text + b"b" * 64, block_bytes=BYTES))
    assert known is not None
    assert (known.n_blocks, known.prompt.token_ids[:5].tolist()) == (10, tokenize(text)[:5])
    assert 36 <= known.n_tokens <= 42


def test_learn_two_prompts_with_one_head_its_length_is_exact_to_a_block() -> None:
    """A head of digits has four times the tokens of other text: proportion alone is far off."""
    prompts, head = LearnedPrompts(), b"1234567890123456" * 10
    learn(prompts, head + b"abcd" * 100)
    blocks = hash_blocks(head + b"none" * 50, block_bytes=BYTES)
    known = prompts.find(blocks)
    assert known is not None
    assert abs(known.n_tokens - 160) > 60
    learn(prompts, head + b"wxyz" * 100)
    known = prompts.find(blocks)
    assert known is not None
    assert abs(known.n_tokens - 160) <= BYTES
    assert [abs(n - BYTES * (at + 1)) <= BYTES for at, n in enumerate(known.prompt.n_tokens[:10])] == [True] * 10


def test_learn_newest_prompt_counts_for_a_known_text() -> None:
    prompts, text = LearnedPrompts(), b"a" * 64
    blocks = hash_blocks(text, block_bytes=BYTES)
    prompts.learn(blocks, 64, [1, 2, 3, 4], BYTES)
    prompts.learn(blocks, 64, [5, 6, 7, 8], BYTES)
    known = prompts.find(blocks)
    assert known is not None
    assert known.prompt.token_ids.tolist() == [5, 6, 7, 8]
    assert len(prompts) == 2


def test_learn_beyond_the_bound_the_oldest_goes() -> None:
    prompts = LearnedPrompts(max_tokens=100)
    blocks = [learn(prompts, bytes([letter]) * 160) for letter in b"abcdef"]
    assert prompts.n_tokens <= 100
    assert prompts.find(blocks[0]) is None
    assert prompts.find(blocks[-1]) is not None


def test_chain_is_computed_once_for_each_size_and_adapter() -> None:
    prompts = LearnedPrompts()
    known = prompts.find(learn(prompts, b"a" * 64))
    assert known is not None
    assert known.prompt.chain(4, 0) is known.prompt.chain(4, 0)
    assert len(known.prompt.chain(4, 0)) == 4
    assert known.prompt.chain(4, 0) != known.prompt.chain(4, 9)


@given(st.lists(st.text(alphabet="ab1 ", max_size=120), min_size=1, max_size=8), st.integers(10, 200))
def test_learn_any_prompts_counts_rise_and_stay_within_the_prompt(texts: list[str], max_tokens: int) -> None:
    prompts, whole = LearnedPrompts(max_tokens), b""
    for text in texts:
        whole = whole[:len(whole) // 2] + text.encode()
        if len(whole) < BYTES:
            continue
        known = prompts.find(learn(prompts, whole))
        assert known is not None
        counts = known.prompt.n_tokens
        assert counts == sorted(counts)
        assert counts[0] >= 0
        assert counts[-1] <= len(tokenize(whole))
        assert prompts.n_tokens <= max(max_tokens, len(tokenize(whole)))
