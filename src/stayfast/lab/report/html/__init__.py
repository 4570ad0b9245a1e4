"""The report as one HTML file that needs no network: `page.page(runs, ...)`."""
