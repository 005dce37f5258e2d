"""From a graph to launches in order, with their memory."""
