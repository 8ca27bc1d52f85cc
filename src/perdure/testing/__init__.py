"""Test suites that ship with perdure: one conformance class for each Protocol, for whoever writes another twin."""
