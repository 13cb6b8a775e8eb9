"""The backend ``mpicoll`` of torch.distributed: what torch makes and calls after ``init_process_group("mpicoll")``."""
