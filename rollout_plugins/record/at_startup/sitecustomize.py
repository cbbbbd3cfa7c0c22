"""Add our callback to the trainers of this process. Python imports this module at startup, because of PYTHONPATH.

Every Python that the command starts reads this file, even Python 2, so its syntax is plain. It imports nothing of
rollout-plugins, and it leaves the process as it would be without this folder: the folder is removed from `sys.path`,
and a `sitecustomize` from elsewhere is run and keeps the name.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))

if sys.version_info >= (3, 10):
    try:
        import rollouts_at_startup  # type: ignore[import-not-found]

        rollouts_at_startup.prepare()
    except Exception as error:
        sys.stderr.write("rollouts record: this process is not recorded: %r\n" % (error,))

sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
_this = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - the one of another folder
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
finally:
    if _this is not None:
        sys.modules.setdefault("sitecustomize", _this)
