"""Sharding: from a program over whole values to the program of each device of a mesh."""
