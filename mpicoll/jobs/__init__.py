"""How a job starts, and how it ends, seen from `mpicoll run` and `mpicoll.spawn`."""
