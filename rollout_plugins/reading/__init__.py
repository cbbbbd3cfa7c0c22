"""Runs that were recorded: open, filter, query, annotate and send them. Recording needs nothing of this."""
