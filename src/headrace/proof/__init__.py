"""Proving views: a second computation from the log, which shares nothing with the ticks."""
