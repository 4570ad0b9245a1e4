"""State shared by several gateways, in Redis or Valkey."""
