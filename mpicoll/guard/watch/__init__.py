"""Watching over calls from a thread of each process: nothing waits for ever, and no difference goes unnoticed."""
