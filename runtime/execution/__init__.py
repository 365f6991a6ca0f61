"""What executes a plan in one process: the interpreter of its instructions and the loop over steps."""
