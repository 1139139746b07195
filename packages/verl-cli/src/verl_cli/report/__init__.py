"""The page of a run: `report.html`, one file that needs no network, with curves and sampled generations."""

from verl_cli.report.page import REPORT_FILE, write_report

__all__ = ["REPORT_FILE", "write_report"]
