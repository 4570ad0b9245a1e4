"""The summaries of long conversations: how many there are, and their deletion."""

from urllib.parse import parse_qs

from stayfast.core.errors import Rejected
from stayfast.http.server.asgi import Scope
from stayfast.keys.principal import admins_only
from stayfast.server.backend import AllWorkers
from stayfast.server.paths import parse_conversation

_MAX_ID_CHARS = 1024


async def answer_conversations(together: AllWorkers, scope: Scope, tenant: str | None) -> bytes:
    """Counts, for admins; for DELETE of one conversation, how many summaries were deleted. tenant: the only one whose
    conversations the client may delete; None: any. Raises Rejected.
    """
    name = parse_conversation(scope["path"])
    if name is None:
        if tenant is not None:
            raise admins_only()
        return await together.histories()
    given = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    if unknown := sorted(given.keys() - {"tenant"}):
        raise Rejected(f"Unknown parameter {unknown[0][:64]}. Supported: tenant.", param=unknown[0][:64])
    if len(given.get("tenant", [])) > 1 or not all(given.get("tenant", ["-"])):
        raise Rejected("tenant must occur once, with at least one character.", param="tenant")
    if len(name) > _MAX_ID_CHARS:
        raise Rejected(f"An id has at most {_MAX_ID_CHARS} characters.", param="id")
    wanted = given.get("tenant", [None])[0]
    if tenant is not None and wanted not in (None, tenant):
        raise admins_only()
    deleted = await together.delete_conversation(name, tenant or wanted)
    if deleted is None:
        raise Rejected("No summary of this conversation is stored. An id is the value of the header x-session-id, or the "
                       "conversation that a request's notes name (`stayfast explain`).", status=404,
                       code="conversation_not_found", param="id")
    return deleted
