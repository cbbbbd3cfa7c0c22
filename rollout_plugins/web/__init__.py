"""One HTML file that shows a run: no server, no network, opens from disk and as an attachment.

from rollout_plugins.report import write_report
write_report(open_run("out"), "report.html", where="reward < 0", limit=200)
"""

from rollout_plugins.web.page import Written, write_report

__all__ = ["Written", "write_report"]
