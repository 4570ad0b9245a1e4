"""Bedrock's HTTP errors: whose fault, whether another attempt helps, and what the client gets."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stayfast.core.errors import Fault
from stayfast.core.types import Api
from stayfast.wire.converse.errors import converse_failure
from stayfast.wire.errors import encode_error
from tests.unit.wire.converse_reference import operation

ALL = {shape.name: shape.metadata["error"]["httpStatusCode"] for shape in operation("Converse").error_shapes}


@pytest.mark.parametrize(("name", "known_as", "can_retry", "is_for_operator", "client_status"), [
    ("ValidationException", 400, False, False, 400), ("AccessDeniedException", 403, True, True, 502),
    ("ResourceNotFoundException", 404, True, False, 404), ("ModelTimeoutException", 408, True, False, 502),
    ("ModelErrorException", 502, True, False, 502), ("ThrottlingException", 429, True, False, 429),
    ("ModelNotReadyException", 503, True, False, 503), ("InternalServerException", 500, True, False, 502),
    ("ServiceUnavailableException", 503, True, False, 503)])
def test_failure_each_exception_of_the_service_model(name: str, known_as: int, can_retry: bool, is_for_operator: bool,
                                                     client_status: int) -> None:
    failed = converse_failure("bed", Api.CHAT, ALL[name], {"x-amzn-errortype": f"{name}:http://internal.amazon.com/"},
                              b'{"message":"why"}')
    assert (failed.fault, failed.upstream_status, failed.can_retry) == (Fault.STATUS, known_as, can_retry)
    assert (failed.is_for_operator, failed.status) == (is_for_operator, client_status)
    assert failed.is_model_missing is (name == "ResourceNotFoundException")


def test_failure_table_has_all_exceptions_of_converse() -> None:
    assert set(ALL) == {"ValidationException", "AccessDeniedException", "ResourceNotFoundException",
                        "ModelTimeoutException", "ModelErrorException", "ThrottlingException", "ModelNotReadyException",
                        "InternalServerException", "ServiceUnavailableException"}


@pytest.mark.parametrize("status", [424, 429, 503])
def test_failure_without_a_name_by_status(status: int) -> None:
    failed = converse_failure("bed", Api.CHAT, status, {}, b"<html>")
    assert failed.can_retry
    assert failed.upstream_status == (502 if status == 424 else status)


def test_failure_name_in_the_body_with_a_namespace() -> None:
    body = b'{"__type":"com.amazon.coral#ThrottlingException","message":"slow"}'
    failed = converse_failure("bed", Api.CHAT, 400, {}, body)
    assert (failed.upstream_status, failed.can_retry) == (429, True)


@pytest.mark.parametrize("client", [Api.CHAT, Api.RESPONSES, Api.MESSAGES])
def test_failure_validation_message_in_the_clients_dialect(client: Api) -> None:
    failed = converse_failure("bed", client, 400, {"x-amzn-errortype": "ValidationException"}, b'{"message":"too long"}')
    status, _, body = encode_error(failed, client, "req")
    assert status == 400
    assert json.loads(body)["error"]["message"] == "too long"
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_failure_signature_message_stays_with_the_operator() -> None:
    failed = converse_failure("bed", Api.CHAT, 403, {"x-amzn-errortype": "InvalidSignatureException"},
                              b'{"Message":"The request signature we calculated does not match"}')
    _, _, body = encode_error(failed, Api.CHAT, "req")
    assert b"signature" not in body
    assert (failed.is_for_operator, failed.code) == (True, "upstream_credentials")


@given(status=st.integers(400, 599), name=st.text(max_size=30), body=st.binary(max_size=40))
def test_failure_any_response_never_raises(status: int, name: str, body: bytes) -> None:
    converse_failure("bed", Api.CHAT, status, {"x-amzn-errortype": name}, body)
