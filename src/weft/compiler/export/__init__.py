"""Programs without Python: a plan as an object file, or as C, with a header."""
