"""Programs to start from; tests/examples runs them with the real libraries."""
