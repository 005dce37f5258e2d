"""NVIDIA cards, through their driver alone."""
