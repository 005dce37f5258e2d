"""From a fusion group or a node to a kernel in the loop language, for any machine."""
