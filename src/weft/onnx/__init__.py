"""ONNX: programs written as ONNX files and read from them.

>>> import weft as wf
>>> wf.onnx.export.__name__
'export'
"""

from weft.onnx.exporting import Report, export

__all__ = ["Report", "export"]
