"""Pipelines: a model cut into stages, each on its own process; see docs/pipelines.md."""
