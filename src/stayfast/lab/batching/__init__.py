"""Modelled encoders and the batchers that users have today."""
