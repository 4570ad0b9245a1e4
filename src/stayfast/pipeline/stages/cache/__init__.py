"""Whether an answer is there already, or on its way for an identical request."""
