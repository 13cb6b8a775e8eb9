"""Calls on the memory of a device: in pieces through the host, on the device itself, or in the memory of peers."""
