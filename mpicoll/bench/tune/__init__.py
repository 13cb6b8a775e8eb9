"""Measures which algorithms are fast on this machine, and makes the table from which jobs choose: ``mpicoll tune``."""
