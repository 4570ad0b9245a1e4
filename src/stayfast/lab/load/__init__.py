"""`stayfast bench`: load that does not omit its own queueing, and a report that says what it does not know."""
