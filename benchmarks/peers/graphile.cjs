// Graphile Worker for graphile.py: `node graphile.cjs worker`, or `client`, which answers requests.
"use strict";
const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { answer, tick } = require("./node.cjs");

const silent = new Logger(() => () => {});
const preset = {
  worker: {
    connectionString: process.env.PEERS_URL,
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    logger: silent,
  },
};

async function submit() {
  const utils = await makeWorkerUtils({ preset });
  await utils.migrate();
  await answer({
    one: () => utils.addJob("noop", {}),
    many: (n) => utils.addJobs(Array.from({ length: n }, () => ({ identifier: "noop", payload: {} }))),
  });
}

if (process.argv[2] === "worker") run({ preset, taskList: { noop: async () => tick() } });
else submit();
