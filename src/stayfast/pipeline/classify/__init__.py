"""Small classifiers in the path of a request: shared vectors, classifiers, guards, and routes by class."""
