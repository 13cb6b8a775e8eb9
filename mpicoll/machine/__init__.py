"""What mpicoll runs on: the CPU, the MPI library, GPUs, and memory that processes can share."""
