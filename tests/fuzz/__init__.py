"""Random programs: made from a seed, run in several ways, compared, and made small when they fail.

See docs/design/fuzzing.md. From the command line: `python -m tests.fuzz --programs 1000 --seed 7`.
"""
