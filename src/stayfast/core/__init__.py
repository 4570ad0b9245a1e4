"""F0: types that all packages share. Pure: no loop, no clock (except `core.clock`), no randomness, no I/O."""
