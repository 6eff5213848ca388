/**
 * Stub of a server, which replies to every call of the module with the same decision, by default an
 * allowed one and with `deny` a denial, and to all else with OK. It counts commands without parsing
 * their words, so that nearly all of the measured time is the client's.
 */

import { createServer } from "node:net";

const ADMITTED = "*5\r\n:1\r\n:100\r\n:99\r\n:0\r\n:60000\r\n";
const DENIED = "*5\r\n:0\r\n:100\r\n:0\r\n:3600000\r\n:3600000\r\n";
const DECISION = Buffer.from(process.argv.includes("deny") ? DENIED : ADMITTED);
const OK = Buffer.from("+OK\r\n");
const LF = 10;

const server = createServer((socket) => {
  socket.setNoDelay(true);
  let rest = Buffer.alloc(0);
  socket.on("error", () => {});
  socket.on("data", (bytes) => {
    const data = rest.length > 0 ? Buffer.concat([rest, bytes]) : bytes;
    const replies = [];
    let at = 0;
    for (;;) {
      const command = read(data, at);
      if (!command) break;
      replies.push(command.isModules ? DECISION : OK);
      at = command.end;
    }
    rest = data.subarray(at);
    if (replies.length > 0)
      socket.write(replies.length === 1 ? replies[0] : Buffer.concat(replies));
  });
}).listen(0, "127.0.0.1", () => process.send(server.address().port));
process.on("disconnect", () => process.exit());

/**
 * Returns the end of a command such as `*2\r
 * $4\r
 * PING\r
 * ...`, or undefined if it is incomplete.
 */
function read(data, start) {
  let at = start + 1;
  let words = 0;
  for (; data[at] !== LF; at++) {
    if (at >= data.length) return undefined;
    if (data[at] >= 48) words = words * 10 + data[at] - 48;
  }
  at++;
  let isModules = false;
  for (let word = 0; word < words; word++) {
    let length = 0;
    for (at++; data[at] !== LF; at++) {
      if (at >= data.length) return undefined;
      if (data[at] >= 48) length = length * 10 + data[at] - 48;
    }
    at++;
    if (word === 0) isModules = length > 3 && data[at] === 82 && data[at + 2] === 46;
    at += length + 2;
    if (at > data.length) return undefined;
  }
  return { end: at, isModules };
}
