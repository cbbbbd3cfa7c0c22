"""Print a command from the README: the line in the code block after `<!-- ci:NAME -->`."""

import re
import sys
from pathlib import Path

text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
found = re.search(rf"<!-- ci:{sys.argv[1]} -->\s*```sh\n(.+?)\n```", text, re.DOTALL)
if found is None:
    sys.exit(f"README.md has no command marked ci:{sys.argv[1]}")
print(found[1])
