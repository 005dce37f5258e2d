"""Layer 0: errors, locations, settings, dtypes, shapes, types and trees."""
