// BullMQ for bullmq.py: `node bullmq.cjs worker`, or `client`, which answers each line of standard input with one.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");
const { FlowProducer, Queue, QueueEvents, Worker } = require("bullmq");

const url = new URL(process.env.PEERS_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const ticks = process.env.PEERS_TICKS;
const once = { removeOnComplete: true };
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

function work() {
  new Worker("peers", async (job) => {
    if (job.name === "noop") return tick();
    if (job.name === "add") return job.data.i + 1;
    return Object.values(await job.getChildrenValues()).reduce((sum, value) => sum + value, 0);
  }, { connection, concurrency: 100 });
}

async function answer() {
  const queue = new Queue("peers", { connection });
  const events = new QueueEvents("peers", { connection });
  const flow = new FlowProducer({ connection });
  events.setMaxListeners(10000);
  await events.waitUntilReady();
  const children = (n) => Array.from({ length: n }, (_, i) => ({ name: "add", data: { i } }));
  const requests = {
    one: () => queue.add("noop", {}, once),
    many: (n) => queue.addBulk(Array.from({ length: n }, () => ({ name: "noop", data: {}, opts: once }))),
    async awaited(n) {
      const jobs = await queue.addBulk(children(n));
      const values = await Promise.all(jobs.map((job) => job.waitUntilFinished(events)));
      return values.reduce((sum, value) => sum + value, 0);
    },
    async fan_in(n) {
      const below = children(n).map((child) => ({ ...child, queueName: "peers" }));
      const root = await flow.add({ name: "total", queueName: "peers", data: {}, children: below });
      return root.job.waitUntilFinished(events);
    },
  };
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [what, n] = line.split(" ");
    const found = await requests[what](Number(n));
    console.log(typeof found === "number" ? found : 0);
  }
  process.exit(0);
}

if (process.argv[2] === "worker") work();
else answer();
