"""Matrix products on NVIDIA cards, as kernels in PTX with epilogues fused into them."""
