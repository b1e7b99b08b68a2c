"""Questions as the command line and Python ask them: a plan is read, checked and answered in one place for both."""
