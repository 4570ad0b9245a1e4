"""What is sent of a request, decided by sizes: token counts, the allowance of a history, the room for an answer."""
