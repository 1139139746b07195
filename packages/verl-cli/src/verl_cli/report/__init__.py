"""Pages about runs: `report.html` of one run, and a comparison of several; each is one file that needs no network."""

from verl_cli.report.compare import read_runs, write_comparison
from verl_cli.report.document import write_page
from verl_cli.report.page import REPORT_FILE, render, write_report
from verl_cli.report.read import Run, read_run

__all__ = [
    "REPORT_FILE",
    "Run",
    "read_run",
    "read_runs",
    "render",
    "write_comparison",
    "write_page",
    "write_report",
]
