"""A stream as it was written, checked clause by clause."""
