"""What a quantised model costs: memory, speed, and how far its answers are from those of the model it was made of."""
