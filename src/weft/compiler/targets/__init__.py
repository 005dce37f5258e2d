"""Machines that programs are compiled for beside the host's processor."""
