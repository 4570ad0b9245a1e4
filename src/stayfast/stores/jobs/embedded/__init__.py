"""The parts of the embedded store of durable work: tables, and the functions that change and read them."""
