"""Definitions written in Python."""
