"""The folder that `rollouts record` puts on PYTHONPATH; see `sitecustomize.py`."""
