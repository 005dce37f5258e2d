"""Attention recognised in a graph, and its gradient."""
