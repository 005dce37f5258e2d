"""The page in a real browser, where there is one: drawn, opened, searched, without an error."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import weft as wf

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--window-size=1600,1000", "--virtual-time-budget=3000",
]  # fmt: skip

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


class Net(wf.nn.Module):
    def __init__(self) -> None:
        self.first = wf.nn.Linear(4, 8)
        self.blocks = [wf.nn.Sequential(wf.nn.Linear(8, 8), wf.nn.ReLU()) for _ in range(3)]

    def forward(self, x: wf.Tensor) -> wf.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return x


def step(net: Net, optimizer: wf.optim.Optimizer, x: wf.Tensor) -> wf.Tensor:
    loss = (net(x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    net = Net()
    arguments = net, wf.optim.SGD(net.parameters(), lr=0.1), wf.ones((3, 4))
    compiled = wf.jit(step)
    explained = compiled.explain(*arguments)
    with wf.tools.profile() as profile:
        compiled(*arguments)
    return wf.tools.show(explained, tmp_path_factory.mktemp("page") / "step.html", profile=profile)


def browse(page: Path, fragment: str, *flags: str) -> str:
    """What the browser makes of the page, as HTML."""
    assert CHROMIUM is not None
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [CHROMIUM, *FLAGS, profile, *flags, f"{page.as_uri()}#{fragment}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    return done.stdout


def boxes(html: str) -> tuple[int, int]:
    found = re.search(r'data-ready="(\d+) boxes, (\d+) edges', html)
    assert found is not None, "the page did not run to its end"
    return int(found[1]), int(found[2])


@pytest.mark.slow
def test_the_page_is_drawn_collapsed_and_opens(page: Path) -> None:
    closed, opened = browse(page, "0", "--dump-dom"), browse(page, "0,all", "--dump-dom")
    assert boxes(closed)[0] < boxes(opened)[0]
    assert "NaN" not in closed[closed.index('id="scene"') : closed.index('id="legend"')]
    for name in ("forward", "backward", "update", "blocks.2"):
        assert re.search(rf">(− )?{re.escape(name)}<", closed)
    assert opened.count('class="node') > closed.count('class="node')
    assert "memory over time" in closed
    assert "hot kernels, by measured time" in closed


@pytest.mark.slow
def test_kernels_can_be_coloured_by_time_and_what_is_found_is_shown(page: Path) -> None:
    html = browse(page, "2,time,find=reduce_sum", "--dump-dom")
    assert "color-mix(in srgb, #e03131" in html
    assert re.search(r'id="found">1 of \d+<', html)
    assert re.search(r'class="node [^"]*hot', html)


@pytest.mark.slow
def test_the_picture_is_not_blank(page: Path) -> None:
    shot = page.parent / "shot.png"
    browse(page, "0", f"--screenshot={shot}")
    assert shot.read_bytes()[:4] == b"\x89PNG"
    assert shot.stat().st_size > 40_000  # a blank page takes a tenth of it
