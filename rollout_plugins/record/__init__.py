"""Record a command's trainers without changing its code: `rollouts record -- COMMAND`, or `ROLLOUT_PLUGINS_RECORD`.

The folder `at_startup` is put on PYTHONPATH. Every Python process of the command imports it, and it adds our callback
to the default callbacks of `transformers.Trainer` when that module is imported. No class is patched.
"""
