"""Layer 3: derivatives, batching, recomputation and checks, as functions of functions."""
