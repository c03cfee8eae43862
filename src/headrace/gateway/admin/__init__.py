"""What operators ask of the gateway, and what it passes on to the engine."""
