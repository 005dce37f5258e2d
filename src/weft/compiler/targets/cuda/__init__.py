"""NVIDIA cards: kernels as PTX text, run by the driver alone."""
