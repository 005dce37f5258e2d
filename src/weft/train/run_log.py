"""A run as a folder that `weft board` shows: settings, numbers, samples, use of the machine.

`run.json` says what the run is, `log.jsonl` has a line for each step and epoch, as `JSONLogger`
writes them, and lines for samples, messages and the machine; samples lie beside it as files.

>>> import weft as wf
>>> log = wf.train.RunLog("runs/first", settings={"lr": 0.01, "width": 64})
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import time
import wave
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.files import write_bytes, write_text
from weft.train.loggers import JSONLogger
from weft.train.png import encode

__all__ = ["RunLog"]

PAUSE = 5.0
"""Seconds between two looks at what the machine does."""
LONGEST_TEXT = 20_000
"""Characters that are kept of a model's text and of a sample."""


class RunLog(JSONLogger):
    """Write a run into a folder, for `weft board`.

    settings: what was chosen for the run, such as `{"lr": 0.01}`, to compare it with others by.
    every: steps from one line to the next.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        settings: Mapping[str, Any] | None = None,
        every: int = 1,
    ) -> None:
        self.folder = Path(folder)
        super().__init__(self.folder / "log.jsonl", every)
        self.settings = dict(settings or {})
        self._about: dict[str, Any] = {}
        self._cards: list[str] = []
        self._step, self._looked, self._begun = 0, 0.0, time.perf_counter()
        self._computed = time.process_time()

    def on_fit_begin(self, trainer: Any) -> None:
        """Write down what the run is; lines behind the step that it begins at are removed."""
        super().on_fit_begin(trainer)
        self._step, self._begun = trainer.step, time.perf_counter()
        places = {str(parameter.device) for parameter in trainer.model.parameters()}
        self._cards = sorted(place for place in places if place.startswith("cuda"))
        self._about = {
            "name": self.folder.name,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "status": "running",
            "settings": {key: _as_json(value) for key, value in self.settings.items()},
            "optimizer": type(trainer.optimizer).__name__,
            "parameters": sum(p.size for p in trainer.model.parameters()),
            "model": repr(trainer.model)[:LONGEST_TEXT],
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Weft {wf.__version__}",
            "command": " ".join(sys.argv)[:LONGEST_TEXT],
        }
        self._write_about()
        self.message("begins" if not trainer.step else f"goes on at step {trainer.step}")

    def on_step_end(self, trainer: Any) -> None:
        """Write the step's numbers, and now and then what the machine does."""
        self._step = trainer.step
        super().on_step_end(trainer)
        if time.perf_counter() - self._looked > PAUSE:
            self._look_at_machine()

    def on_fit_end(self, trainer: Any) -> None:
        """Write how the run ended."""
        self._look_at_machine()
        error = sys.exc_info()[1]
        self._about["status"] = "ended" if error is None else f"failed: {type(error).__name__}"
        self._about["step"] = trainer.step
        self._write_about()
        self.message(self._about["status"])

    # --- what a callback of the user's adds ------------------------------------------------------

    def text(self, name: str, text: str) -> None:
        """Add a text, such as what a language model writes at this step."""
        self._append({"step": self._step, "sample": name, "text": str(text)[:LONGEST_TEXT]})

    def image(self, name: str, pixels: Any) -> None:
        """Add an image: [height, width] or [height, width, 3], bytes or floats from 0 to 1."""
        array = np.asarray(pixels)
        if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3) or not array.size:
            raise wf.ShapeError(
                "train.RunLog.image",
                "this is no image",
                expected="[height, width] or [height, width, 3]",
                got={"pixels": array.shape},
                fix="channels come last: x.permute(1, 2, 0)",
            )
        if array.dtype.kind == "f":
            array = np.rint(np.clip(np.nan_to_num(array), 0.0, 1.0) * 255)
        array = array.astype(np.uint8)
        if array.ndim == 2:
            array = np.repeat(array[:, :, None], 3, axis=2)
        self._add_file(name, "image", "png", encode(array))

    def audio(self, name: str, samples: Any, rate: int = 16_000) -> None:
        """Add a sound of one channel: floats from -1 to 1."""
        array = np.clip(np.nan_to_num(np.asarray(samples, np.float64).reshape(-1)), -1.0, 1.0)
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(rate)
            writer.writeframes(np.rint(array * 32767).astype("<i2").tobytes())
        self._add_file(name, "audio", "wav", file.getvalue())

    def message(self, text: str) -> None:
        """Add a line to what the run says."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._append({"step": self._step, "message": text, "time": now})

    # --- how -------------------------------------------------------------------------------------

    def _add_file(self, name: str, kind: str, ending: str, data: bytes) -> None:
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in name)
        path = self.folder / "samples" / f"{plain[:80]}-{self._step}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes("RunLog", path, data)
        self._append({"step": self._step, "sample": name, kind: path.name})

    def _look_at_machine(self) -> None:
        now, computed = time.perf_counter(), time.process_time()
        elapsed = now - (self._looked or self._begun)
        seen: dict[str, float] = {
            "memory, MB": _held_bytes() / 1e6,
            "processor, %": 100.0 * (computed - self._computed) / max(elapsed, 1e-9),
        }
        for card in self._cards:
            seen[f"{card} memory, MB"] = wf.cuda.memory_stats(card).used / 1e6
        self._looked, self._computed = now, computed
        rounded = {key: round(value, 1) for key, value in seen.items()}
        self._append({"step": self._step, "machine": rounded})

    def _write_about(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self._about, indent=1)
        write_text("RunLog", self.folder / "run.json", text)


def _held_bytes() -> float:
    """The memory of this process, in bytes; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def _as_json(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool)) or value is None else str(value)
