"""From a plan to processes that train it: the job file, the run folder, the command, and watching it."""
