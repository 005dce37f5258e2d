"""The shortest way to run a call that was made before."""
