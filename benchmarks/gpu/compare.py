"""Time Weft beside PyTorch and JAX on a card: `make bench-gpu`, or some workloads at a time.

    python benchmarks/gpu/compare.py --only eager mlp --rounds 4
    python benchmarks/gpu/compare.py --only gpt --frameworks weft torch torch-compile --resume
    python benchmarks/gpu/compare.py --card cpu --quick      # tiny sizes on the processor

The frameworks take turns as in benchmarks/compare.py, whose options it takes; each sample ends with
a wait for the card. With --resume the rows that are there already stay, so that the whole can be
measured in pieces.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run the comparison with a card as the device."""
    given = sys.argv[1:]
    place = "cuda"
    if "--card" in given:
        at = given.index("--card")
        place = given[at + 1]
        del given[at : at + 2]
    os.environ["BENCHMARK_CARD"] = place
    if not any(each.startswith("--output") for each in given):
        given += ["--output", str(HERE.parent / "results" / "gpu.json")]
    sys.argv = [sys.argv[0], *given]
    sys.path.insert(0, str(HERE.parent))
    import compare  # it reads the device when it is loaded

    compare.main()


if __name__ == "__main__":
    main()
