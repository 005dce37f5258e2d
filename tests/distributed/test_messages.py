"""Messages of the engine without a launcher: their order, large ones both ways, and a loss."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.distributed.jobs import launch

from weft.distributed.engines.engine import LostProcess
from weft.distributed.engines.messages import Mailbox


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[list[Mailbox]]:
    made = [Mailbox(str(tmp_path), "group", rank, timeout=10.0) for rank in range(2)]
    yield made
    for each in made:
        each.close()


def test_messages_keep_their_order_under_a_tag_and_wait_under_others(boxes: list[Mailbox]) -> None:
    first, second = boxes
    for number in range(3):
        first.send(np.array([number], np.uint8), 1, tag=5)
    first.send(np.zeros(0, np.uint8), 1, tag=-2)
    assert second.receive(0, tag=-2).size == 0
    assert [second.receive(0, tag=5).tolist() for _ in range(3)] == [[0], [1], [2]]


def test_large_messages_go_both_ways_at_once(boxes: list[Mailbox]) -> None:
    large = np.arange(3_000_000, dtype=np.uint8)
    found: list[np.ndarray] = []

    def exchange(own: int) -> None:
        boxes[own].send(large + own, 1 - own, tag=0)
        found.append(boxes[own].receive(1 - own, tag=0) - (1 - own))

    threads = [threading.Thread(target=exchange, args=(own,)) for own in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(found) == 2
    assert all(np.array_equal(each, large) for each in found)


def test_what_was_sent_before_an_end_arrives_and_then_the_end_is_told(
    boxes: list[Mailbox],
) -> None:
    first, second = boxes
    first.send(np.ones(2, np.uint8), 1, tag=1)
    first.close()
    assert second.receive(0, tag=1).tolist() == [1, 1]
    with pytest.raises(LostProcess, match="process 0 of the group ended"):
        second.receive(0, tag=1)


def test_a_process_that_never_listens_is_not_waited_for_longer_than_was_said(
    tmp_path: Path,
) -> None:
    alone = Mailbox(str(tmp_path), "group", 0, timeout=0.1)
    with pytest.raises(LostProcess, match="does not listen"):
        alone.send(np.ones(2, np.uint8), 1, tag=1)
    with pytest.raises(LostProcess, match="sent nothing in"):
        alone.receive(1, tag=1)
    alone.close()


PIPELINE = """
import numpy as np
import weft as wf
from weft import distributed

distributed.init("gloo", axes={"stage": 2}, timeout=60)
wf.random.seed(0)
net = wf.nn.Sequential(*[layer for _ in range(3) for layer in (wf.nn.Linear(64, 64), wf.nn.Tanh())])
x = wf.tensor(np.random.default_rng(0).normal(size=(512, 64)).astype(np.float32))
y = wf.zeros((512, 64))
expected = wf.nn.functional.mse_loss(net(x), y).item()
pipeline = distributed.Pipeline(net, wf.nn.functional.mse_loss, micro_batches=4)
found = pipeline.step(x, y).item()
assert abs(found - expected) < 1e-5, (found, expected)
print("as in one process", flush=True)
"""


@pytest.mark.slow
def test_a_pipeline_runs_over_gloo(tmp_path: Path) -> None:
    pytest.importorskip("xoscar", reason="the engine gloo is not installed")
    job = launch(tmp_path, PIPELINE, "--engine", "gloo", "--threads", "1")
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("as in one process") == 2
