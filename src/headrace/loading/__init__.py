"""Files into a table: read, cast, sent in numbered batches, and what they lack deleted."""
