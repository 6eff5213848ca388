"""Stub of a server, which measures the cost of the client alone: it replies with the same decision
to every call of the module, and with OK to other commands. `python stub.py` prints its port.
"""

import asyncio
import re
import sys

DECISION = b"*5\r\n:1\r\n:1000\r\n:999\r\n:0\r\n:60000\r\n"
# Start of a command. No argument in a benchmark matches it.
COMMAND = re.compile(rb"\*\d+\r\n\$\d+\r\n(RL)?")


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        for command in COMMAND.finditer(data):
            writer.write(DECISION if command[1] else b"+OK\r\n")
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit()
