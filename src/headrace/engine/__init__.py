"""The engine: Spark session, prepared plans, ticks, watermarks, ledger. Knows no HTTP."""
