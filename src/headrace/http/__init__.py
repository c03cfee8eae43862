"""HTTP, for every process that answers: connections, refusals, problem documents, access."""
