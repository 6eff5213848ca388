"""Servers without the module, for tests."""

from support.server import Server


def without_module(server: Server) -> Server:
    """Removes the module from the configuration of a server, before it starts."""
    settings = server.directory / "server.conf"
    lines = settings.read_text().splitlines(keepends=True)
    settings.write_text("".join(line for line in lines if not line.startswith("loadmodule")))
    return server
