"""One verb a file; stages never import each other."""
