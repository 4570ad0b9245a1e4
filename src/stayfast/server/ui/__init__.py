"""The page of the gateway: its files, and the sign-in for it."""
