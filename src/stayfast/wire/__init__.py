"""F1: bytes to values and back for each protocol. Pure: no sockets; survives every split of its input."""
