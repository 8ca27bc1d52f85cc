"""The command line: one module a command, put together in `main`. It may introduce any two systems to each other."""
