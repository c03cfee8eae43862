"""Sequence numbers: of producers, and of those that events carry."""
