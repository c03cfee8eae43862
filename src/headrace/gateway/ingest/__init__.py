"""From a request's body to one durable group commit."""
