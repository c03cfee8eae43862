"""The log as files on one machine."""
