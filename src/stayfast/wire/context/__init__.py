"""The parts of a conversation: its turns, and the summary that replaces older ones."""
