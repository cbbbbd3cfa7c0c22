"""The terminal viewer."""
