"""The reports of `stayfast bench`: tables, HTML pages, comparisons, files."""
