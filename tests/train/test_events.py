"""Event files: read back by a reader of their format, and by TensorBoard itself where installed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import weft as wf
from weft.train.events import EventWriter, crc32c


def records(path: Path) -> Iterator[bytes]:
    """The data of a file's records, after their checksums were checked."""
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert unmasked(data[8:12]) == crc32c(data[:8])
        content = data[12 : 12 + length]
        assert unmasked(data[12 + length : 16 + length]) == crc32c(content)
        yield content
        data = data[16 + length :]


def unmasked(data: bytes) -> int:
    value = (struct.unpack("<I", data)[0] - 0xA282EAD8) & 0xFFFFFFFF
    return ((value >> 17) | (value << 15)) & 0xFFFFFFFF


def test_the_checksum_is_that_of_the_standard() -> None:
    # RFC 3720, appendix B.4.
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes([0xFF] * 32)) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_records_can_be_read_back(tmp_path: Path) -> None:
    with EventWriter(tmp_path) as writer:
        writer.scalar("loss", 0.5, step=300)
    first, second = records(writer.path)
    assert first.endswith(b"brain.Event:2")
    assert b"loss" in second
    assert second.endswith(b"\x15" + struct.pack("<f", 0.5))  # field 2 of a value: a float
    assert b"\x10\xac\x02" in second  # field 2 of an event: the step 300 as a varint


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    values = np.random.default_rng(0).normal(size=500)
    with EventWriter(tmp_path) as writer:
        for step in range(3):
            writer.scalar("loss", 1.0 / (step + 1), step)
        writer.histogram("weights", values, 2)
        writer.text("notes", "a *text*", 1)
        writer.image("picture", np.eye(4), 1)
    found = module.EventAccumulator(str(tmp_path), size_guidance={module.HISTOGRAMS: 0})
    found.Reload()
    assert [(e.step, round(e.value, 4)) for e in found.Scalars("loss")] == [
        (0, 1.0),
        (1, 0.5),
        (2, 0.3333),
    ]
    histogram = found.Histograms("weights")[0].histogram_value
    assert (histogram.num, histogram.min, histogram.max) == (500, values.min(), values.max())
    assert sum(histogram.bucket) == 500
    assert histogram.sum_squares == pytest.approx(float(values @ values))
    assert found.Tensors("notes")[0].tensor_proto.string_val == [b"a *text*"]
    picture = found.Images("picture")[0]
    assert (picture.width, picture.height) == (4, 4)
    assert picture.encoded_image_string[:4] == b"\x89PNG"


def test_tensorboard_forgets_what_an_interrupted_run_wrote(tmp_path: Path) -> None:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with EventWriter(tmp_path) as writer:
        for step in range(1, 6):
            writer.scalar("loss", float(step), step)
    with EventWriter(tmp_path, purge_step=4) as writer:
        writer.scalar("loss", 40.0, 4)
    found = module.EventAccumulator(str(tmp_path))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [
        (1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0),
    ]  # fmt: skip


def test_a_training_is_seen_in_tensorboard(tmp_path: Path) -> None:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model = wf.nn.Linear(2, 1)
    trainer = wf.train.Trainer(
        model,
        lambda outputs, target: ((outputs - target) ** 2).mean(),
        wf.optim.SGD(model.parameters(), lr=0.1),
        metrics=["mae"],
        callbacks=[
            wf.train.TensorBoard(tmp_path / "run"),
            wf.train.Histograms(tmp_path / "run", every=2),
        ],
        progress=False,
    )
    history = trainer.fit((wf.ones((8, 2)), wf.ones((8, 1))), epochs=2, batch_size=4)
    found = module.EventAccumulator(str(tmp_path / "run"), size_guidance={module.HISTOGRAMS: 0})
    found.Reload()
    tags = found.Tags()
    assert {"step/loss", "step/lr", "epoch/loss", "epoch/mae"} <= set(tags["scalars"])
    assert [e.step for e in found.Scalars("step/loss")] == [1, 2, 3, 4]
    assert found.Scalars("epoch/loss")[1].value == pytest.approx(history["loss"][1])
    assert set(tags["histograms"]) == {
        "weights/weight", "weights/bias", "gradients/weight", "gradients/bias",
    }  # fmt: skip
    assert [e.step for e in found.Histograms("gradients/weight")] == [2, 4]
