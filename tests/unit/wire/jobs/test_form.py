"""Forms with a file, cut anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import Rejected
from stayfast.wire.jobs.form import MAX_FIELD_BYTES, MAX_FIELDS, UploadForm

TYPE = "multipart/form-data; boundary=XX"


def part(head: str, body: bytes) -> bytes:
    """One part of a form."""
    return b"--XX\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + body + b"\r\n"


def upload(contents: bytes, filename: str = "in.jsonl") -> bytes:
    """A form as SDKs send it."""
    return (part('name="purpose"', b"batch") + part(f'name="file"; filename="{filename}"', contents)
            + part('name="expires_after[seconds]"', b"3600") + b"--XX--\r\n")


def read(form: UploadForm, body: bytes, step: int) -> bytes:
    """The file of a body that arrives in parts of `step` bytes."""
    return b"".join(data for at in range(0, len(body), step) for data in form.feed(body[at:at + step]))


@given(st.lists(st.sampled_from([b"\r\n", b"--XX", b"--", b"\r", b"\n", b"-", b"abc", b"\0\xff"])).map(b"".join),
       st.integers(1, 40))
def test_feed_cut_anywhere_is_the_file(contents: bytes, step: int) -> None:
    if b"\r\n--XX" in b"\r\n" + contents:
        contents = contents.replace(b"--XX", b"")
    form = UploadForm(TYPE)
    assert read(form, upload(contents), step) == contents
    assert form.close() == "in.jsonl"
    assert form.fields == {"purpose": "batch", "expires_after[seconds]": "3600"}


@pytest.mark.parametrize(("name", "shown"), [
    ("../../etc/passwd", "passwd"), ("C:\\\\a\\\\b.txt", "b.txt"), ("ü.jsonl", "ü.jsonl"), ("", "upload"),
    ("a" * 300, "a" * 255)])
def test_close_filename_is_never_a_path(name: str, shown: str) -> None:
    form = UploadForm(TYPE)
    form.feed(upload(b"x", name))
    assert form.close() == shown


@pytest.mark.parametrize("kind", ["", "application/json", "multipart/form-data", "multipart/mixed; boundary=XX"])
def test_form_of_another_type_is_415(kind: str) -> None:
    with pytest.raises(Rejected) as caught:
        UploadForm(kind)
    assert caught.value.status == 415


@pytest.mark.parametrize("body", [
    b"", b"hello", upload(b"x")[:-8], part('name="purpose"', b"batch") + b"--XX--\r\n",
    part("nothing", b"x") + b"--XX--\r\n",
    part('name="purpose"', b"x" * (MAX_FIELD_BYTES + 1)) + b"--XX--\r\n",
    part('name="a"', b"") * (MAX_FIELDS + 1) + b"--XX--\r\n",
    part('name="file"; filename="a"', b"") * 2 + b"--XX--\r\n",
    b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + b"x" * 9000])
def test_malformed_form_is_rejected(body: bytes) -> None:
    form = UploadForm(TYPE)
    with pytest.raises(Rejected) as caught:  # noqa: PT012  # either may find it
        form.feed(body)
        form.close()
    assert caught.value.status == 400


@given(st.binary(max_size=200))
def test_any_bytes_are_a_form_or_rejected(body: bytes) -> None:
    form = UploadForm(TYPE)
    try:
        form.feed(b"--XX\r\n" + body)
        form.close()
    except Rejected as error:
        assert error.status == 400  # noqa: PT017
