"""The LLVM target: kernels of the loop language as native code for the machine's vectors."""
