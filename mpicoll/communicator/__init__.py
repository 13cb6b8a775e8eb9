"""The public face: collectives, messages and objects among the ranks of a communicator."""
