"""From a user's call to a program and back: tracing, arguments, state, the cache of programs."""
