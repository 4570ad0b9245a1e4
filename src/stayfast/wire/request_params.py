"""What a request asks of the model beside its prompt, for traces: numbers only, never a word of anybody's."""

from typing import Final

import msgspec

from stayfast.core.events import RequestParams
from stayfast.core.types import Request

_PARAMS: Final = msgspec.json.Decoder(RequestParams)


def request_params(request: Request) -> RequestParams:
    """The parameters; what is not a number where one belongs is left out, with all the others."""
    try:
        params = _PARAMS.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        params = RequestParams()
    return msgspec.structs.replace(params, max_tokens=request.max_output_tokens,
                                   choice_count=request.n_choices if request.n_choices != 1 else None)
