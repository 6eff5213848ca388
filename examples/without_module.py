"""For the tests: a server as it comes, before anybody has loaded the module."""

from support.server import Server


def without_module(server: Server) -> Server:
    """Such a server once it starts: its configuration names no module any more."""
    settings = server.directory / "server.conf"
    lines = settings.read_text().splitlines(keepends=True)
    settings.write_text("".join(line for line in lines if not line.startswith("loadmodule")))
    return server
