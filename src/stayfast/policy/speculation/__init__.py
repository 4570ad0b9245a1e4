"""Whether tokens are guessed ahead: the arms of one engine, and the choice among them."""
