"""Write, read and annotate one run on disk. Nothing here imports torch or a trainer."""
