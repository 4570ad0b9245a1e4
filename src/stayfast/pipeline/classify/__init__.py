"""What a route knows of small classifiers: shared vectors, classifiers, guards, and routes by class."""
