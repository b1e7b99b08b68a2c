"""What really happened: profiler traces, memory and this machine, as the records that predictions use."""
