"""Wrong use raises at once, with the correct form."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from stayfast.testing import SimLoop, run
from stayfast.turns import HedgePolicy, budget, step
from tests.turns.rig import takes

Body = Callable[[Any], Coroutine[Any, Any, object]]  # Any: as for who uses no type checker
WRONG: list[tuple[Body, type[Exception], str]] = [
    (lambda b: b.run(lambda: 1), TypeError, r'a step needs a name, .* b\.run\(\.\.\., name="kb"\)'),
    (lambda b: b.run(partial(lambda: 1)), TypeError, "a step needs a name"),
    (lambda b: b.run(takes, 1, cap=-1), ValueError, r"cap=-1: .* above 0, as in cap=0\.4"),
    (lambda b: b.run(takes, 1, cap=0), ValueError, "cap=0: "),
    (lambda b: b.run("kb", name="kb"), TypeError, r"a step is a function and its arguments, b\.run\(find"),
    (lambda b: b.run(stream, name="s"), TypeError, "a step returns once, an async generator does not"),
    (lambda b: b.run(stream(), name="s"), TypeError, "a step returns once"),
    (lambda b: b.run(takes), TypeError, r"step 'takes': .* given 0 .*: 'seconds': write b\.run\(takes, seconds\)"),
    (lambda b: b.run(plain), TypeError, r"write b\.run\(plain, name\), or plain=step\(plain, name\) in b\.gather"),
    (lambda b: b.run(plain, "a", "b", "c", fallback=None), TypeError, "step 'plain': .* 3 argument.s., too many positional"),
    (lambda b: b.run(partial(plain, day="today")), TypeError, "missing a required argument: 'name'"),
    (lambda b: b.run(takes(1), 1, name="kb"), TypeError, r"coroutine has its arguments .* b\.run\(find\(question\)\)"),
    (lambda b: b.run(takes, 1, fallback=takes(1)), TypeError, r"a fallback is a value, as in fallback=\[\]"),
    (lambda b: b.gather(good=takes(1), own=plain, other=takes(1)), TypeError, r"step 'own': .* own=step\(plain, name\)"),
    (lambda b: b.gather(good=step(takes(1)), own=takes, other=step(takes(1))), TypeError, r"own=step\(takes, seconds\)"),
    (lambda b: b.gather(own=5, other=takes(1)), TypeError, r"own=5: a step is a .*; here own=step\(find, question\)"),
    (lambda b: b.run(takes, 1, hedge=0.3), TypeError, r"search = HedgePolicy\(\)"),
    (lambda b: b.run(takes, 1, breaker=True), TypeError, r"crm = BreakerPolicy\(\)"),
    (lambda b: b.run(step(takes, 1, cap=-1)), ValueError, r"cap=-1: .* above 0, as in cap=0\.4"),
    (lambda b: b.run(step(takes, 1, kind="tools")), ValueError, "kind='tools': the kind of the step .*, tool or retrieval"),
    (lambda b: b.gather(), TypeError, "nothing to run"),
    (lambda b: b.gather(takes, need=1), TypeError, r"a step without a name: .* b\.gather\(kb=step\(search, question\)"),
    (lambda b: b.gather(a=takes, need=2), ValueError, "need=2: of 1 steps"),
    (lambda b: b.gather(a=takes(1), b=step(takes(1)), by=0), ValueError, r"by=0: .* as in by=0\.6"),
    (lambda b: b.run(takes, 1, cap="1"), TypeError, r"cap='1': .* as in cap=0\.4"),
    (lambda b: b.run(takes, 1, name=""), ValueError, "name='': leave the name out"),
    (lambda b: b.run(takes, 1, name=5), TypeError, 'name=5: a step\'s name is text, .* name="kb"'),
    (lambda b: b.gather(a=takes, by="0.6"), TypeError, r"by='0\.6': .* as in by=0\.6"),
    (lambda b: b.gather(a=takes, need="1"), TypeError, "need='1': .* as in need=1; no step can have this name"),
    (lambda b: b.gather(a=takes, need=True), TypeError, "need=True: how many"),
    (lambda b: b.gather(a=takes, need=-1), ValueError, "need=-1: of 1 steps, 0 to 1 can be needed"),
    (lambda b: b.gather(a=takes, late=takes), TypeError, "late=<function takes.*: the budget around this one, .* this name"),
    (lambda b: b.__aenter__(), RuntimeError, "entered once"),
]


def plain(name: str, day: str = "today") -> str:
    """What runs in a thread."""
    return f"{name} {day}"


async def stream() -> AsyncIterator[int]:
    """What is no step."""
    yield 1


@pytest.mark.parametrize(("body", "kind", "says"), WRONG)
def test_step_wrong_use_raises_with_the_correction(body: Body, kind: type[Exception], says: str) -> None:
    """Whatever its fallback; no task is left."""
    async def main(loop: SimLoop) -> None:
        async with budget(1) as b:
            with pytest.raises(kind, match=says):
                await body(b)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


@pytest.mark.parametrize(("made", "says"), [
    (lambda: budget(0), r"total=0: .* budget\(total=2\.5\)"), (lambda: budget(-1), "total=-1"),
    (lambda: budget(float("nan")), "total=nan"), (lambda: budget(1, {"answer": 0}), "reserve={'answer': 0}"),
    (lambda: budget(1, {"a": 0.5, "b": 0.5}), "reserve adds up to 1 s, which leaves nothing of total=1"),
    (lambda: HedgePolicy(0), r"share=0: .* HedgePolicy\(share=0\.05\)"),
    (lambda: HedgePolicy(after_s=-1), r"after_s=-1: .* HedgePolicy\(after_s=0\.2\)"),
    (lambda: budget(1, caller_timeout=-1), r"caller_timeout=-1: .* leave it out"),
    (lambda: budget(1, caller_timeout=float("nan")), "caller_timeout=nan")])
def test_budget_wrong_values_raise(made: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        made()


@pytest.mark.parametrize(("arguments", "says"), [
    (("2.5",), r"total='2\.5': .* budget\(total=2\.5\)"),
    ((1, ["answer"]), r"reserve=\['answer'\]: .* reserve={\"answer\": 1\.6}"),
    ((1, {"answer": "0.5"}), r"reserve={'answer': '0\.5'}: .* as in reserve="),
    ((1, 0), r"reserve=0: .* reserve={\"answer\": 1\.6}"), ((1, {5: 0.5}), r"reserve={5: 0\.5}: a key is the name"),
    ((True,), r"total=True: .* budget\(total=2\.5\)"), ((1, {"answer": True}), "reserve={'answer': True}")])
def test_budget_values_of_another_type_raise_type_error(arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        budget(*arguments)


def test_budget_in_a_plain_with_raises() -> None:
    plain: Any = budget(1)
    with pytest.raises(TypeError, match="async with"), plain:
        pytest.fail("the body ran")


def test_step_outside_of_its_budget_raises() -> None:
    async def main(loop: SimLoop) -> None:
        with pytest.raises(RuntimeError, match="async with budget"):
            budget(1).remaining()
        with pytest.raises(RuntimeError, match=r"write budget\(total=2\.5\)"):
            await budget().__aenter__()
        async with budget(1) as b:
            late = b.run(takes, 0.1)
        with pytest.raises(RuntimeError, match="step 'takes' was started outside of its budget: await it inside"):
            await late
        with pytest.raises(RuntimeError, match="outside of its budget"):
            await b.gather(kb=step(takes, 1))
        assert b.remaining() == 0.0

    run(main)


def test_step_in_another_loop_raises() -> None:
    """A thread may submit a step to the budget's loop."""
    async def main() -> None:
        async with budget(5) as b:
            def wrong() -> None:
                asyncio.run(b.run(takes, 0.01))

            def right() -> object:
                return asyncio.run_coroutine_threadsafe(b.run(takes, 0.01, "well"), b.loop).result()

            with pytest.raises(RuntimeError, match=r"another event loop than its budget's: .* b\.loop"):
                await b.run(wrong)
            assert await b.run(right) == "well"

    asyncio.run(main())


def test_hedge_of_a_coroutine_raises() -> None:
    async def main(loop: SimLoop) -> None:
        coroutine = takes(1)
        with pytest.raises(TypeError, match=r"step\(find, question, hedge=search\)"):
            step(coroutine, hedge=HedgePolicy())
        coroutine.close()

    run(main)
