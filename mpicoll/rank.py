"""``python -m mpicoll.rank script.py``: what each rank of a job executes."""

from mpicoll.launch.rank import main

if __name__ == "__main__":
    main()
