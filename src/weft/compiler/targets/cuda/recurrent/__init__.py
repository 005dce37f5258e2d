"""Loops whose steps are one product of the carry: all steps in one kernel, of blocks that stay."""
