"""Kernels on NVIDIA cards, timed against the libraries that PyTorch calls."""
