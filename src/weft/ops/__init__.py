"""Layer 2: every primitive, one file per family, and the functions composed of them."""
