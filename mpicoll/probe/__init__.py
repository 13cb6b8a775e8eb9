"""What may crash a process, or never return, is tried in processes of its own."""
