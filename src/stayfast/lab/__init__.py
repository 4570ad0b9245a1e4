"""The laboratory: load, reports, simulators and proofs. Only the command line and tests import it."""
