"""Python imports this when it starts, because `rollouts record` puts this folder first on PYTHONPATH.

Any Python that the command starts reads this file, Python 2 included, so it uses the plainest syntax. It imports
nothing of rollout-plugins, and in the end the process is as it would be without this folder: the folder is off
`sys.path`, and a `sitecustomize` from elsewhere has run and has the name.
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
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - what comes without this folder
except ImportError as error:
    if getattr(error, "name", "sitecustomize") != "sitecustomize":
        raise
finally:
    if _this is not None:
        sys.modules.setdefault("sitecustomize", _this)
