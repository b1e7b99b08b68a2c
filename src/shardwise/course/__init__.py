"""The course: what training in parallel is, told with simulations, numbers and real runs on the reader's machine."""
