"""Machine code and whole programs that are kept, in memory and on disk."""
