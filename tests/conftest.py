"""Set before any test imports a library that reads it once."""

import gc
import os
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", CUDA_VISIBLE_DEVICES="", WANDB_MODE="offline")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp(prefix="trackio-"))


def pytest_collection_finish():
    """A trainer collects garbage whenever it ends, and need not look at all that the libraries brought, which stays."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()  # or what libraries let go of when Python ends would count as leaked
