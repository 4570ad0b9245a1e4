"""What is known of each upstream now: its health, its limits, and the attempts that run there."""
