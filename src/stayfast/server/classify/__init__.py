"""The endpoint of classifiers."""
