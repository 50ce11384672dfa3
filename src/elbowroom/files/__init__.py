"""Files: how records are written and read."""
