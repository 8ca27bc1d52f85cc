"""Small JSON services over the systems, and one web console to which each system adds a page."""
