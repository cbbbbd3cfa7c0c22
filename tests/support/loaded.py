"""What tests of loading share: distributions as pip leaves them, a plugin without faults, and the order of plugins."""

import sys
import textwrap
from functools import partial

import pytest

from rollout_plugins import hookimpl


def distribution(folder, name, entries, modules=None, *, version="1.0", group="rollout_plugins", summary="Plugins"):
    """Put a distribution with these entry points and modules into a folder, as pip would."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    facts = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {summary}\n"
    (info / "METADATA").write_text(facts)
    lines = "\n".join(f"{entry} = {address}" for entry, address in entries.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}\n")
    for module, text in (modules or {}).items():
        (folder / f"{module}.py").write_text(textwrap.dedent(text))


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution with entry points on the path, and forget its modules afterwards, whose names begin with x_."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield partial(distribution, tmp_path)
    for name in [name for name in sys.modules if name.startswith("x_")]:
        del sys.modules[name]


class Fine:
    name = "fine"

    @hookimpl
    def on_rollout(self, rollout):
        return None


def order(plugins):
    """Return the names of the plugins that run, in calling order; parts of a plugin are not listed."""
    names = [name for name, _ in reversed(plugins.manager.list_name_plugin())]
    return [name for name in names if "." not in name]
