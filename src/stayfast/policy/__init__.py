"""F1: decisions. Each takes samples and `now`, returns values; none keeps a clock, draws randomness, logs or awaits."""
