"""Set before any test imports a library that reads it once."""

import gc
import os
import tempfile

import pytest

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", CUDA_VISIBLE_DEVICES="", WANDB_MODE="offline")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A machine may be slow, and stop for a while: nothing is given up on unless that is what a test is about.
os.environ.update(ROLLOUT_PLUGINS_END_SECONDS="600", ROLLOUT_PLUGINS_HANG_SECONDS="600")
os.environ.update(HF_HUB_ETAG_TIMEOUT="120", HF_HUB_DOWNLOAD_TIMEOUT="120")
os.environ.update(WANDB_X_SERVICE_WAIT="600", WANDB_INIT_TIMEOUT="600")
os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp(prefix="trackio-"))


def keep_what_there_is():
    """A trainer collects garbage whenever it ends, and need not look at all that libraries and earlier tests keep."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish():
    keep_what_there_is()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    if nextitem is not None and nextitem.path != item.path and len(gc.get_objects()) > 10_000:
        keep_what_there_is()


def pytest_sessionfinish():
    gc.unfreeze()  # or what libraries let go of when Python ends would count as leaked
