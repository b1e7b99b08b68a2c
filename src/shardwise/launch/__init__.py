"""Starts the processes that train a plan: the job file, the run folder, the command, and watching the run."""
