"""Arrays: any array as a buffer, the dtypes and operations that are legal, and all of the library's arithmetic."""
