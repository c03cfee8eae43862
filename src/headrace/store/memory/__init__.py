"""A backend that keeps its tables in memory."""
