"""What runs programs on the processor: driver, threads, the native parts of launches."""
