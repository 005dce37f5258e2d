"""ONNX export: rules, recognition of high operators, and verification of the file."""

from weft.onnx.exporting.export import Report, export

__all__ = ["Report", "export"]
