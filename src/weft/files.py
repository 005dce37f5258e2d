"""Reading files that nobody has checked, and writing files whole: for those who add formats.

>>> import tempfile
>>> from weft import files
>>> path = tempfile.mkdtemp() + "/sizes.json"
>>> files.write_text("example", path, '{"width": 3}')
>>> files.read_json("example", path)["width"]
3
"""

from weft.core.files import (
    Unpacked,
    damaged,
    is_plain_name,
    open_file,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    replacing,
    unpack_gzip,
    unpacked_limit,
    write_bytes,
    write_text,
)

__all__ = [
    "Unpacked", "damaged", "is_plain_name", "open_file", "parse_json", "read_bytes", "read_json",
    "read_text", "replacing", "unpack_gzip", "unpacked_limit", "write_bytes", "write_text",
]  # fmt: skip
