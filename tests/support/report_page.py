"""What the tests of the report's page look at."""

from __future__ import annotations

import re

from rollout_plugins import open_run

ROWS = "tr[data-place]"


def listed(page):
    return int(re.match(r"[\d,]+", page.text("#filter-says"))[0].replace(",", ""))


def wait_listed(page, test):
    """The number of rollouts listed, when it has become what it should."""
    page.wait(
        f"({test})(Number(document.querySelector('#filter-says').innerText.match(/^[\\d,]+/)[0].replaceAll(',', '')))"
    )
    return listed(page)


def rewards(page):
    """The rewards of the rows in sight, as they are written."""
    at = 1 + next(at for at, text in enumerate(page.texts(".rows th")) if text.startswith("reward"))
    return [float(text.replace("\u2212", "-")) for text in page.texts(f"{ROWS} td:nth-child({at})")]


def first_with_failure(pages):
    return next(iter(open_run(pages["shop"].parent).rollouts(where="failed_calls > 0")))
