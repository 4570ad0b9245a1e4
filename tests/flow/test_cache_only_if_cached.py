"""only-if-cached: a kept answer, or 504. Whatever else is asked for, nobody is called."""

import asyncio

import pytest

from stayfast.core.errors import Shed
from stayfast.core.types import CacheControl
from stayfast.testing import SimLoop, run
from tests.flow.cache_rig import HELLO, CacheRig
from tests.flow.rig import chat


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("is_kept", [True, False])
def test_only_if_cached_with_no_cache_is_a_504(stream: bool, is_kept: bool) -> None:
    """No call is made, with and without a stored answer."""

    async def main(loop: SimLoop) -> None:
        rig = CacheRig(loop, HELLO, HELLO)
        if is_kept:
            await rig.text()
            await asyncio.sleep(0)
        with pytest.raises(Shed) as refused:
            await rig.serve_request(chat(stream=stream), CacheControl(no_cache=True, only_if_cached=True))
        assert (refused.value.status, refused.value.code) == (504, "not_cached")
        assert rig.n_calls == is_kept
        rig.check_clean()

    run(main)
