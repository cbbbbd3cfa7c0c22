"""The page that shows a run, as one file."""
