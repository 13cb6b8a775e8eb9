"""Files of a job: what each process did last, for people and for torch's tools, and a trace of all calls."""
