"""A client's cache controls, and the cache headers of answers."""

from typing import cast

import pytest
import uvloop

from stayfast.core.errors import Rejected
from stayfast.core.types import Api, CacheControl, Request
from stayfast.pipeline.exchange import Arrival
from stayfast.pipeline.stages.relay import Reply
from stayfast.server.http_request import parse_cache_control
from stayfast.wire.request_body import decode
from tests.server.fakes import ANSWER, CHAT, STREAM, FakeBackend, FakeGateway, FakeReply, Step, post, serving


class Remembering(FakeGateway):
    """Answers out of its memory."""

    async def serve(self, request: Request, arrival: Arrival) -> Reply:
        await super().serve(request, arrival)
        steps: list[Step] = [b"data: a\n\n"] if request.stream else [ANSWER]
        reply = FakeReply(steps)
        reply.cache = "hit; kind=exact; age=12"
        return cast("Reply", reply)


@pytest.mark.sockets
@pytest.mark.parametrize("body", [CHAT, STREAM])
def test_x_cache_header_has_result(body: bytes) -> None:
    """Whole ones and streams; and what the client said has come through."""
    async def main() -> None:
        gateway = Remembering()
        async with serving(FakeBackend(gateway=gateway)) as running:
            client = await running.connect()
            client.send(post(body, "/v1/chat/completions", "Cache-Control: max-age=60"))
            assert b"\r\nx-cache: hit; kind=exact; age=12\r\n" in await client.until(b"\r\n\r\n")
        (seen,) = gateway.seen
        assert seen[1].cache == CacheControl(max_age_s=60)

    uvloop.run(main())


@pytest.mark.parametrize(("said", "meant"), [
    (b"no-store", CacheControl(no_store=True)),
    (b"No-Cache, no-transform", CacheControl(no_cache=True)),
    (b"only-if-cached,max-age=0", CacheControl(only_if_cached=True, max_age_s=0)),
    (b"max-stale=5, x", CacheControl()),
    (b'max-age="60"', CacheControl(max_age_s=60)),
    (b"max-age = 5 , max-age=9", CacheControl(max_age_s=5)),
    (b"max-age=99999999999", CacheControl(max_age_s=2.0**31)),
    (b"max-age=" + b"9" * 400, CacheControl(max_age_s=2.0**31)),
    (b'no-store=1, no-cache="x"', CacheControl(no_store=True, no_cache=True)),
    (b'x="a, no-store, \\", only-if-cached", max-ages=5', CacheControl()),
])
def test_cache_control_header_directives_are_parsed(said: bytes, meant: CacheControl) -> None:
    """In any case and company; words of others mean nothing."""
    assert parse_cache_control({b"cache-control": said}) == meant
    assert parse_cache_control({}) is None


def test_cache_tags_from_header_and_body() -> None:
    """Both lists count; blanks around a tag do not."""
    assert parse_cache_control({b"x-cache-tags": b"faq, v2 ,,a/b"}) == CacheControl(tags=("faq", "v2", "a/b"))
    both = {b"x-cache-tags": b"faq", b"cache-control": b"no-cache"}
    assert parse_cache_control(both) == CacheControl(no_cache=True, tags=("faq",))
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}],"stayfast":{"cache":{"tags":["faq","v2"]}}}'
    assert decode(Api.CHAT, body).cache == CacheControl(tags=("faq", "v2"))


@pytest.mark.parametrize("said", [b"a b", b"x" * 65, "\u00fc".encode("latin-1"), b",".join(b"t%d" % n for n in range(17))])
def test_cache_tag_invalid_is_400(said: bytes) -> None:
    """Names the header."""
    with pytest.raises(Rejected) as refused:
        parse_cache_control({b"x-cache-tags": said})
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "bad_cache_tags", "x-cache-tags")


@pytest.mark.parametrize("said", [b"max-age", b"max-age=", b"max-age=-1", b"max-age=1.5", b"max-age=\"", b"max-age=1 2"])
def test_cache_control_malformed_max_age_is_400(said: bytes) -> None:
    """400, by the header's name."""
    with pytest.raises(Rejected) as refused:
        parse_cache_control({b"cache-control": said})
    assert (refused.value.status, refused.value.param) == (400, "cache-control")


def test_cache_control_in_body() -> None:
    """In the member `stayfast`, which no upstream sees."""
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}],"stayfast":{"cache":{"no-cache":true,"max-age":5}}}'
    request = decode(Api.CHAT, body)
    assert request.cache == CacheControl(no_cache=True, max_age_s=5)
    assert b"stayfast" not in request.body


@pytest.mark.parametrize(("cache", "param"), [
    (b'{"no-cash":true}', "stayfast.cache"), (b'{"max-age":-1}', "stayfast.cache.max-age"),
    (b'{"tags":["a,b"]}', "stayfast.cache.tags[0]"), (b'{"tags":"a"}', "stayfast.cache.tags"), (b'"off"', "stayfast.cache")])
def test_cache_control_in_body_unknown_field_is_400(cache: bytes, param: str) -> None:
    """400, by its path."""
    with pytest.raises(Rejected) as refused:
        decode(Api.CHAT, b'{"model":"m","messages":[{"role":"user","content":"a"}],"stayfast":{"cache":%b}}' % cache)
    assert (refused.value.status, refused.value.param) == (400, param)


HEAD = b'{"model":"m","messages":[{"role":"user","content":"say \\"cache\\""}]'


@pytest.mark.parametrize(("said", "meant"), [
    (b'{"no-cache":true}', CacheControl(no_cache=True)), (b'{"no-store": true, "ttl": null}', CacheControl(no_store=True)),
    (b'{"ttl":300,"s-maxage":600}', CacheControl(keep_s=300, max_age_s=600)),
    (b'{"namespace":"mine","type":"redis"}', CacheControl(namespace="mine")), (b'{"use-cache":true}', CacheControl()),
    (b"{}", CacheControl()), (b"null", CacheControl())])
def test_cache_field_of_litellm_is_accepted(said: bytes, meant: CacheControl) -> None:
    """It is read, and goes to no upstream."""
    request = decode(Api.CHAT, HEAD + b',"cache":%b}' % said)
    assert request.cache == meant
    assert request.body == HEAD + b"}"


@pytest.mark.parametrize("said", [b'{"dir":"/tmp"}', b"true", b'"on"', b"[1]"])
def test_cache_field_of_other_servers_is_forwarded(said: bytes) -> None:
    """It goes on as it came."""
    body = HEAD + b', "cache":%b}' % said
    request = decode(Api.CHAT, body)
    assert (request.cache, request.body) == (None, body)


@pytest.mark.parametrize(("more", "param"), [
    (b'"cache":{"ttl":"soon"}', "cache.ttl"), (b'"cache":{"s-maxage":-1}', "cache.s-maxage"),
    (b'"cache":{"no-cache":1}', "cache.no-cache"), (b'"cache":{"ttl":0}', "cache.ttl"),
    (b'"cache":{"ttl":9},"stayfast":{"cache":{"no-cache":true}}', "cache")])
def test_cache_field_of_litellm_invalid_value_is_400(more: bytes, param: str) -> None:
    """400, by its path; and both ways at once say too much."""
    with pytest.raises(Rejected) as refused:
        decode(Api.CHAT, HEAD + b"," + more + b"}")
    assert (refused.value.status, refused.value.param) == (400, param)


def test_cache_fields_of_litellm_are_accepted_in_stayfast_member() -> None:
    """A time to keep, and a namespace."""
    request = decode(Api.CHAT, HEAD + b',"cache":null,"stayfast":{"cache":{"ttl":9,"namespace":"n"}}}')
    assert request.cache == CacheControl(keep_s=9, namespace="n")
    assert request.body == HEAD + b"}"
