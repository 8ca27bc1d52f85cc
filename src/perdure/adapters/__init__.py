"""Glue to other libraries, one folder a library; each is an extra and is imported only when it is used."""
