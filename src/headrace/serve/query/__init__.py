"""Reading views."""
