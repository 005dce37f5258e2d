"""The comparison's parts: workloads, the worker process that runs them, and the report."""
