"""Reports: what finished runs leave (rows) -> aggregate -> figures -> page."""
