"""What a compiled program says of itself: explanations, memory, times."""
