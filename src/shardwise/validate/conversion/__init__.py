"""From a published row to the plan that repeats it, one file per kind of source."""
