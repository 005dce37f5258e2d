"""What bad input gets: a catalogue of mistakes, and the tests that walk it."""
