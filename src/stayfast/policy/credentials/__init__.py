"""When credentials that expire are renewed."""
