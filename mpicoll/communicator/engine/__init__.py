"""What a Communicator is made of: from a call's arguments to its plan, and to its end."""
