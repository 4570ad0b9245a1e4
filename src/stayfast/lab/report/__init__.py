"""What a run of the bench says: tables, pages, comparisons, files."""
