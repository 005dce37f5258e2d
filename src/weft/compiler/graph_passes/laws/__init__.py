"""Rewriting rules: small equalities, each tested on its own sample."""
