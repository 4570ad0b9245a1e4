"""Training code of the tiny model that ships with Stayfast. Not part of the installed package."""
