"""Matrix products that are generated for the machine: register tiles, packing, blocks."""
