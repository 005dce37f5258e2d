"""What compiled programs need while they run: threads, memory, the cache on disk, and events.

This layer knows nothing of graphs or of LLVM; native code reaches it by address.

>>> from weft.runtime.threads import available_cores
>>> available_cores() >= 1
True
"""
