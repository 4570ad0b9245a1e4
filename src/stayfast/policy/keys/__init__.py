"""What a stored key may do, and how its scopes and quota are written."""
