"""Which requests come in, in which order, and how much each tenant may use."""
