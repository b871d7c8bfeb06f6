// BullMQ for bullmq.py: `node bullmq.cjs worker`, or `client`, which answers requests.
"use strict";
const { FlowProducer, Queue, QueueEvents, Worker } = require("bullmq");
const { answer, tick } = require("./node.cjs");

const url = new URL(process.env.PEERS_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const once = { removeOnComplete: true };

function work() {
  new Worker("peers", async (job) => {
    if (job.name === "noop") return tick();
    if (job.name === "add") return job.data.i + 1;
    return Object.values(await job.getChildrenValues()).reduce((sum, value) => sum + value, 0);
  }, { connection, concurrency: 100 });
}

async function submit() {
  const queue = new Queue("peers", { connection });
  const events = new QueueEvents("peers", { connection });
  const flow = new FlowProducer({ connection });
  events.setMaxListeners(10000);
  await events.waitUntilReady();
  const children = (n) => Array.from({ length: n }, (_, i) => ({ name: "add", data: { i } }));
  await answer({
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
  });
}

if (process.argv[2] === "worker") work();
else submit();
