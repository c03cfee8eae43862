"""What operators ask of the engine."""
