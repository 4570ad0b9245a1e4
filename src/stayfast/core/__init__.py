"""F0: the words everybody uses. Pure: no loop, no clock (but for `core.clock`), no randomness, no I/O."""
