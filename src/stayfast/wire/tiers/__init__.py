"""Service tiers of providers in request bodies."""
