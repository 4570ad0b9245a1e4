"""The slot of a llama.cpp server in a request's body (`id_slot`)."""


def write_slot(body: bytes, slot: int) -> bytes:
    """The body, a JSON object with members, with this slot as its last member: llama.cpp's parser takes the last of equal
    names, so a slot that a client named is replaced.
    """
    return b'%b,"id_slot":%d}' % (body.rstrip()[:-1], slot)
