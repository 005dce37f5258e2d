"""The command line: `weft train`, `eval`, `predict`, `show`, `check`, `export`, `bench`, `info`.

    weft train mine.py --epochs 5 --set lr=0.01 --folder run

>>> from weft.cli import main
>>> main(["info", "--json", "--quiet"])
0
"""

from weft.cli.application import main
from weft.cli.registry import register_program

__all__ = ["main", "register_program"]
