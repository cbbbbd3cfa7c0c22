"""Sessions: the recording of one trainer. A session takes what the trainer's host emits down to the pipeline."""
