"""Passes: pure functions from graphs to graphs, each in the file that bears its name."""
