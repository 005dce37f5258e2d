"""Run a module as if there were a card, whose memory is the host's: whether it runs, not how fast.

python -m tests.compiler.cuda.imitated benchmarks.gpu.steps eager_open
"""

from __future__ import annotations

import runpy
import sys

import pytest
from tests.compiler.cuda.host_card import host_card


def main() -> None:
    """Run the module that the command line names, with the arguments behind it."""
    sys.argv = sys.argv[1:]
    with pytest.MonkeyPatch.context() as patch, host_card(patch):
        runpy.run_module(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
