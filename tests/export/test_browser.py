"""A page in a browser without a head: a digit is drawn, and read by a module for the web."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.scripts import load_script

import weft as wf
from weft.compiler.export.linking import web_linker

EXAMPLE = Path(__file__).parents[2] / "examples" / "digit_in_browser" / "export.py"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser is found")
@pytest.mark.skipif(web_linker() is None, reason="no linker for the web is found")
def test_a_page_reads_a_drawn_digit(tmp_path: Path) -> None:
    module, page = load_script(EXAMPLE), tmp_path / "digit.html"
    net = module.train(6)
    module.write_page(net, page)
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000",
        f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"{page.as_uri()}#zero",
    ]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    image, chances = (
        np.array(re.findall(f'data-{name}="([^"]*)"', said)[0].split(), np.float32)
        for name in ("image", "chances")
    )
    assert image.max() > 0.5, "something is drawn"
    wanted = wf.softmax(net(wf.tensor(image[None])), axis=-1)[0].detach().numpy()
    np.testing.assert_allclose(chances, wanted, rtol=1e-3, atol=1e-5)
    assert int(chances.argmax()) == 0
    assert '<span id="digit">0</span>' in said
