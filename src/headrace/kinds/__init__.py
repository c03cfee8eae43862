"""The ways in which views keep their state. Nothing here reads or writes anything."""
