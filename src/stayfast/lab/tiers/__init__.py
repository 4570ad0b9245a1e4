"""Real tiers for proofs: classifiers of a bank's questions, which answer behind a gateway in virtual time."""
