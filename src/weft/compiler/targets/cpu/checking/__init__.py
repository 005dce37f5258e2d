"""The checking mode: memory of compiled programs, fenced, filled and compared; see `memory`."""
