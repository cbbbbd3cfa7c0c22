"""`write_report(open_run("out"), "report.html")`: one HTML file that shows the run."""

from rollout_plugins.web import Written, write_report

__all__ = ["Written", "write_report"]
