"""Attention on NVIDIA cards in one pass over keys, as kernels in PTX."""
