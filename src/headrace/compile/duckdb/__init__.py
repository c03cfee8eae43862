"""Spark's expressions over state, written for DuckDB with Spark's value and type."""
