"""`axolotl train` on a machine without a GPU, from the source distribution, which lacks one of axolotl's packages."""

import sys
from pathlib import Path
from types import ModuleType

import torch


def no_gpu(*args, **kwargs):
    raise RuntimeError("no GPU")


def main(config):
    sys.path[0] = str(Path.cwd())  # as `python -m axolotl.cli.train` has it
    torch.cuda.get_device_capability = no_gpu  # a torch without CUDA raises what axolotl does not expect
    sys.modules["axolotl.contribs"] = ModuleType("axolotl.contribs")
    sys.modules["axolotl.contribs.lgpl"] = lgpl = ModuleType("axolotl.contribs.lgpl")
    lgpl.fix_untrained_tokens = None
    from axolotl.cli.train import do_cli

    do_cli(config)


if __name__ == "__main__":
    main(sys.argv[1])
