"""Endpoints of snapshots and frames."""
