"""Reports on finished runs: rows -> averages over seeds -> tables and figures -> one page."""
