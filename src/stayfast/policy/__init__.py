"""F1: decisions. Functions of samples and `now`, without clocks, randomness of their own, logs or awaits."""
