"""The questions that the command line and Python both ask: here a plan is read, checked and answered for either."""
