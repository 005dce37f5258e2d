"""Images in folders: one folder per class, read with Pillow when an item is asked for.

`ImageFolder("photos")` finds `photos/cat/1.png`, `photos/dog/7.jpg` and so on; classes are numbered
in alphabetical order. Items are (float32[channels, height, width] from 0 to 1, label).

>>> from weft.data.images import EXTENSIONS
>>> ".png" in EXTENSIONS
True
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import weft as wf
from weft.data.dataset import Dataset, checked_index
from weft.data.optional import require
from weft.files import open_file

EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


MOST_PIXELS = 1 << 27
"""The most pixels of an image: a small file may stand for more than the memory holds."""


class ImageFolder(Dataset):
    """Images by class; `size=(height, width)` resizes, `mode` is "RGB", "L" or "RGBA"."""

    def __init__(
        self, root: str | Path, *, size: tuple[int, int] | None = None, mode: str = "RGB"
    ) -> None:
        self.root = Path(root)
        self.size = size
        self.mode = mode
        folders = sorted(entry for entry in self.root.iterdir() if entry.is_dir())
        self.classes = [folder.name for folder in folders]
        self.files = [
            (path, label)
            for label, folder in enumerate(folders)
            for path in sorted(folder.rglob("*"))
            if path.suffix.lower() in EXTENSIONS
        ]
        if not self.files:
            raise wf.ArgumentError(
                "ImageFolder",
                "there are no images",
                expected=f"files like {self.root / 'class' / 'image.png'}",
                got={"root": str(root), "folders": self.classes},
                fix="put the images of each class into a folder of its own",
            )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int, /) -> tuple[npt.NDArray[np.float32], int]:
        path, label = self.files[checked_index(index, len(self))]
        return read_image(path, size=self.size, mode=self.mode), label


def _open_image(pillow: Any, file: Any) -> Any:
    """An image whose pixels are not read yet, if it is not too large."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
        image = pillow.open(file)
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise ValueError(f"{width} x {height} pixels")
    return image


def read_image(
    path: str | Path, *, size: tuple[int, int] | None = None, mode: str = "RGB"
) -> npt.NDArray[np.float32]:
    """One image as float32[channels, height, width] from 0 to 1."""
    pillow: Any = require("PIL.Image", "pillow", "read_image")
    try:
        with open_file("read_image", path) as file, _open_image(pillow, file) as image:
            chosen = image.convert(mode)
            if size is not None:
                chosen = chosen.resize((size[1], size[0]), pillow.Resampling.BILINEAR)
            pixels = np.asarray(chosen, np.float32) / np.float32(255)
    except wf.WeftError:
        raise
    except Exception as error:  # decoders raise whatever they trip over
        raise wf.ArgumentError(
            "read_image",
            "the file cannot be read as an image",
            expected=f"a whole image that Pillow can read, of at most {MOST_PIXELS} pixels",
            got={"file": str(path), "error": f"{type(error).__name__}: {error}"},
            fix="remove the file, or convert it again",
        ) from error
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
