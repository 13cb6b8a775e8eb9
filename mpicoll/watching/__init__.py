"""Watches over programs that call MPI by themselves: see ``mpicoll.watch``."""
