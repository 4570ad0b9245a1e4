"""Credentials that expire: how they are fetched and renewed. The modules of the kinds need packages of extras."""
