"""ONNX export: a rule for each primitive, recognition of high operators, and verification."""
