"""Which upstream a path is passed to, and the forms that are not passed."""

from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import Rejected
from stayfast.wire.passthrough.paths import OTHER, PassedPaths, canonical_path, upstream_target

PATHS = PassedPaths("openai", {"/v1/images": "images", "/v1/images/edits": "edits", "/v1/score": "own"})


@pytest.mark.parametrize(("path", "upstream"), [
    ("/v1/images/generations", "images"), ("/v1/images", "images"), ("/v1/images/edits", "edits"),
    ("/v1/images/edits/x", "edits"), ("/v1/imagesque", "openai"), ("/v1/audio/speech", "openai"), ("/v1/score", "own"),
    ("/v1/Images/x", "images"), ("/v1/%69mages", "images"), ("/v1/images;a=b/x", "images"), ("/v1/images/", "images"),
])
def test_find_longest_prefix_of_segments_wins(path: str, upstream: str) -> None:
    assert PATHS.find(canonical_path(path)) == upstream


def test_find_without_default_passes_named_paths_only() -> None:
    paths = PassedPaths(None, {"/v1/images": "images"})
    assert paths.find("/v1/images/x") == "images"
    assert paths.find("/v1/audio/speech") is None


@pytest.mark.parametrize("path", [
    "/v1/../admin", "/v1/images/..", "/v1/%2e%2e/x", "/v1/%2E./x", "/v1/a%2f..%2fb", "/v1/%252e%252e/x", "/v1/..;x/y",
    "/v1/./x", "/v1//x", "/v1/a%2f%2fb", "/v1/a\\..\\b", "/v1/a%5cb", "/v1/a%00", "/v1/a%0d%0ab", "/v1/a%7f",
    "/v1/%25252525252e",
])
def test_canonical_path_ambiguous_is_rejected(path: str) -> None:
    with pytest.raises(Rejected) as rejected:
        canonical_path(path)
    assert (rejected.value.status, rejected.value.code) == (400, "bad_path")


@pytest.mark.parametrize(("path", "canonical"), [
    ("/v1/%66iles", "/v1/files"), ("/v1/Files/", "/v1/files"), ("/v1/files;x=1", "/v1/files"),
    ("/v1/chat%2Fcompletions", "/v1/chat/completions"), ("/v1/%2566iles", "/v1/files"),
])
def test_canonical_path_disguised_is_the_plain_one(path: str, canonical: str) -> None:
    assert canonical_path(path) == canonical


@given(st.text(st.sampled_from("/.%;\\abcdef0123456789 \r\n"), max_size=40))
def test_canonical_path_any_text_holds_no_dot_segment(tail: str) -> None:
    """Whatever an upstream decodes, however often, it finds no other path than the canonical one."""
    path = "/v1/" + tail
    try:
        canonical = canonical_path(path)
    except Rejected:
        return
    decoded = path
    for _ in range(6):
        assert not {".", ".."} & {part.partition(";")[0] for part in decoded.replace("\\", "/").split("/")}
        decoded = unquote(decoded, "latin-1")
    assert canonical == canonical.lower()
    assert "%" not in canonical or unquote(canonical, "latin-1") == canonical


@given(st.lists(st.from_regex("[A-Za-z0-9]{1,8}", fullmatch=True), min_size=1, max_size=5))
def test_find_encoded_path_is_that_of_plain_one(segments: list[str]) -> None:
    plain = "/v1/" + "/".join(segments)
    encoded = "/v1/" + "/".join("".join(f"%{ord(char):02x}" for char in segment) for segment in segments)
    assert canonical_path(encoded) == canonical_path(plain) == quote(plain.lower())
    assert PATHS.find(canonical_path(encoded)) == PATHS.find(canonical_path(plain))


@pytest.mark.parametrize(("path", "label"), [
    ("/v1/images/edits/x", "/v1/images/edits"), ("/v1/audio/speech", "/v1/audio"), ("/v1/score", "/v1/score"),
    ("/v1/fine_tuning/jobs/ft-1", "/v1/fine_tuning"), ("/v1/whatever/x", OTHER), ("/v1", OTHER),
])
def test_label_unknown_family_is_other(path: str, label: str) -> None:
    assert PATHS.label(path) == label


def test_upstream_target_keeps_encoding_and_query() -> None:
    assert upstream_target("/openai/v1", "/v1/files/a%20b", b"x=%2F&y") == "/openai/v1/files/a%20b?x=%2F&y"
    assert upstream_target("", "/v1/score", b"") == "/score"
