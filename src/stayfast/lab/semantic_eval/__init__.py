"""`stayfast cache eval`: a semantic cache evaluated on a file of questions."""
