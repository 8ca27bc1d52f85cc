"""A memory as a server of the Model Context Protocol, for agents of others: over stdio, and over HTTP.

`tools` says what an agent may call and carries it out (it knows no protocol), `server` speaks the protocol by its
official package, `door` decides who may come in over HTTP. Needs ``pip install 'perdure[memory]'``.
"""
