"""Processes: where a rank stands, private folders and locks, and trees of processes that end when they must."""
