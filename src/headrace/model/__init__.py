"""What a project is, as plain values; the errors; the settings. Knows nothing else."""
