"""What is sent of a request: its history, its instructions, and the room for its answer."""
