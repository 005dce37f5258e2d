"""The compiler: from a graph to one native program. `docs/design/compiler.md` gives the way."""
