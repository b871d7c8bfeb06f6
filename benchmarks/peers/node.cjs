// Shared by the peers that run in Node.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");

const ticks = process.env.PEERS_TICKS;
let file = null;

// The clock of Python's time.monotonic.
const seconds = () => Number(process.hrtime.bigint()) / 1e9;

// As `tick` in shared.py: the time and the process, and the first job waits for the other processes.
function tick() {
  if (file === null) {
    waitForAll();
    file = fs.openSync(ticks, "a");
  }
  const record = Buffer.alloc(16);
  record.writeDoubleLE(seconds(), 0);
  record.writeBigUInt64LE(BigInt(process.pid), 8);
  fs.writeSync(file, record);
}

function waitForAll() {
  const { dir, name } = path.parse(ticks);
  fs.writeFileSync(path.join(dir, `${name}.${process.pid}`), "");
  const end = seconds() + 10;
  const all = Number(process.env.PEERS_PROCESSES || 1);
  while (fs.readdirSync(dir).filter((each) => each.startsWith(`${name}.`)).length < all && seconds() < end);
}

// Answer each line of standard input, as `many 1000`, with one: the number that the request gives, or 0.
async function answer(requests) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [what, n] = line.split(" ");
    const found = await requests[what](Number(n));
    console.log(typeof found === "number" ? found : 0);
  }
  process.exit(0);
}

module.exports = { answer, tick };
