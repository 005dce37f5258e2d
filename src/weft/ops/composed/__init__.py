"""Functions made of primitives."""
