"""Convolutions on NVIDIA cards: products that read windows where they lie."""
