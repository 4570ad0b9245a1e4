"""What limits a self-hosted engine."""
