"""Planted faults: gateways in virtual time with one known thing wrong, for the checks of `policy.findings`."""
