"""What to compute again so that a program fits into a given amount of memory."""
