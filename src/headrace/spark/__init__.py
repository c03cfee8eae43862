"""Everything that runs in Spark, or talks to it: the session, the passes, the leaf."""
