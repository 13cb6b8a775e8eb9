"""What the functions work on: process groups, and the handles of what is under way in them."""
