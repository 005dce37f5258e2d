"""Passes over loops: less work in each step."""
