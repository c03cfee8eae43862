"""Reading the store: pages, queries, and what a query may be."""
