"""The board for Grafana, made by code so that a test can put every one of its queries to a real Prometheus."""
