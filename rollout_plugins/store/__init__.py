"""One run on disk: write it, read it, annotate it. Imports neither torch nor any trainer."""
