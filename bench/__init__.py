"""The benchmarks: `python -m bench`. A figure counts only when its output equals the oracle's."""
