"""`stayfast prove`: every published number as a named claim that anyone can run again."""
