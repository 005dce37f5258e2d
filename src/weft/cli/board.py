"""`weft board`: a local page of runs, or one file of them."""

from __future__ import annotations

import webbrowser
from argparse import Namespace
from pathlib import Path

from weft.cli.mistakes import Mistake
from weft.cli.printing import say
from weft.tools.board.page import export_page
from weft.tools.board.server import BoardServer

__all__ = ["board"]


def board(flags: Namespace) -> int:
    """`weft board`."""
    root = Path(flags.folder)
    if not root.is_dir():
        raise Mistake(f"no such folder: {root}; wf.train.RunLog writes runs, --board of weft train")
    if flags.export:
        say(f"page: {export_page(root, Path(flags.export))}")
        return 0
    with BoardServer(root, flags.port) as server:
        say(f"{server.address} shows the runs in {root}; Ctrl-C ends it")
        if flags.open:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("")
    return 0
