"""A model of what schedules cost on a machine."""
