"""The page of `weft board`: runs side by side, from a local server or as one file."""
