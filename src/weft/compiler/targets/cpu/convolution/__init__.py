"""Convolutions in compiled programs: plans, native functions and calls."""
