"""What we run on."""
