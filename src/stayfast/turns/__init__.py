"""The budget layer: one deadline through retrieval, tools and the model, inside any framework."""
