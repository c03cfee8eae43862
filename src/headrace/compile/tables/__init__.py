"""A table as it was written, checked clause by clause."""
