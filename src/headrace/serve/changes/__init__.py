"""Following views."""
