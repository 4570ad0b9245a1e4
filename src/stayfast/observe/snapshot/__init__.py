"""What one worker observes of itself and its traffic, and how the parts of all workers make a Snapshot."""
