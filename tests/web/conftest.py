"""The reports that tests open, and the browser they open them in."""

from __future__ import annotations

import pytest
from chromium import browser
from report_rig import Boards, empty, few, fill, resumed, seen

from rollout_plugins import open_run
from rollout_plugins.report import write_report


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """The reports that the tests open, by name."""
    made = {}
    for name, make in (
        ("shop", lambda folder: fill(folder, range(1, 13))),
        ("seen", seen),
        ("resumed", resumed),
        ("empty", empty),
        ("few", few),
    ):
        folder = tmp_path_factory.mktemp(name)
        make(folder)
        made[name] = folder / "report.html"
        write_report(open_run(folder), made[name], plugins=[Boards()] if name == "seen" else [])
    return made


@pytest.fixture(scope="session")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(tab, pages):
    """The shop's report, fresh; nothing may go wrong in it, and nothing may be asked of any network."""
    tab.size(1280, 900)
    tab.media()
    tab.mouse("mouseMoved", 0, 0)
    tab.faults.clear()
    tab.asked.clear()
    tab.open(pages["shop"])
    yield tab
    tab.eval("localStorage.clear()")
    assert tab.faults == []
    assert {address for address in tab.asked if not address.startswith("file:")} <= {"about:blank"}
    assert {address.partition("#")[0] for address in tab.asked if address.startswith("file:")} <= {
        path.as_uri() for path in pages.values()
    }
