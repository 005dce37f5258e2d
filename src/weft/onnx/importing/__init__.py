"""Reading ONNX models: the file, the program in it, the rules of its operators, the module."""
