"""A PostgreSQL that is killed, frozen, full or migrated by several gateways at once."""
