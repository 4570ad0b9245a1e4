"""State shared by several gateways."""
