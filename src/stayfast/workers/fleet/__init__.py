"""What one gateway exchanges with the others."""
