"""The functions that programs call, with torch.distributed's names and signatures. ``mpicoll.torch`` exports them."""
