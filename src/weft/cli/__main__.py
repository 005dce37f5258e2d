"""`python -m weft.cli` is `weft`.

>>> import weft.cli.__main__
"""

import sys

from weft.cli import main

if __name__ == "__main__":
    sys.exit(main())
