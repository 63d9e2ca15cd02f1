// graphile-worker, driven as its documentation says to for throughput; the line protocol is that of drivers/protocol.py.
import { createInterface } from "node:readline";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";

const [command, url, ...rest] = process.argv.slice(2);
const silent = new Logger(() => () => {});
const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const now = () => Number(process.hrtime.bigint());
const lines = () => createInterface({ input: process.stdin });

async function connect() {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  return client;
}

function makePool(max) {
  const pool = new pg.Pool({ connectionString: url, max });
  const fail = (error) => {
    throw error;
  };
  pool.on("error", fail);
  pool.on("connect", (client) => client.on("error", fail));
  return pool;
}

const ONE = { name: "one", text: "select graphile_worker.add_job('noop', '{}'::json)" };

async function one(seconds) {
  const client = await connect();
  await client.query(ONE);
  const began = now();
  let jobs = 0;
  let passed = 0;
  while ((passed = (now() - began) / 1e9) < seconds) {
    await client.query(ONE);
    jobs += 1;
  }
  await client.end();
  say({ jobs, seconds: passed });
}

async function crowd(seconds, callers, connections) {
  const pool = makePool(connections);
  await pool.query(ONE);
  const began = now();
  let jobs = 0;
  const call = async () => {
    while ((now() - began) / 1e9 < seconds) {
      await pool.query(ONE);
      jobs += 1;
    }
  };
  await Promise.all(Array.from({ length: callers }, call));
  const passed = (now() - began) / 1e9;
  await pool.end();
  say({ jobs, seconds: passed });
}

async function batch(jobs, size) {
  const pool = makePool(1);
  const utils = await makeWorkerUtils({ pgPool: pool, logger: silent });
  const began = now();
  for (let at = 0; at < jobs; at += size) {
    const specs = Array.from({ length: Math.min(size, jobs - at) }, () => ({ identifier: "noop", payload: {} }));
    await utils.addJobs(specs);
  }
  const seconds = (now() - began) / 1e9;
  await utils.release();
  await pool.end();
  say({ jobs, seconds });
}

async function pulse() {
  const client = await connect();
  const once = async () => {
    await client.query("begin");
    await client.query(ONE);
    await client.query("commit");
    say({ event: "committed", at: now() });
  };
  await once();
  for await (const _ of lines()) await once();
  await client.end();
}

async function work(options) {
  const { pool: poolSize, ...worker } = options;
  const pool = makePool(poolSize);
  let runner = null;
  let reporter = null;
  say({ event: "ready" });
  for await (const line of lines()) {
    if (line === "start") {
      const tally = { count: 0, first: 0, last: 0 };
      const noop = () => {
        tally.last = now();
        if (tally.count === 0) tally.first = tally.last;
        tally.count += 1;
      };
      let told = 0;
      reporter = setInterval(() => {
        if (tally.count !== told) {
          told = tally.count;
          say({ event: "ran", ...tally });
        }
      }, 5);
      runner = await run({
        pgPool: pool,
        logger: silent,
        noHandleSignals: true,
        taskList: { noop },
        preset: { worker },
      });
    } else if (line === "stop") {
      await runner.stop();
      clearInterval(reporter);
      say({ event: "stopped" });
    }
  }
  await pool.end();
}

const commands = {
  install: async () => {
    const utils = await makeWorkerUtils({ connectionString: url, logger: silent });
    await utils.migrate();
    await utils.release();
  },
  one: () => one(Number(rest[0])),
  crowd: () => crowd(...rest.map(Number)),
  batch: () => batch(Number(rest[0]), Number(rest[1])),
  pulse,
  work: () => work(JSON.parse(rest[0])),
};

await commands[command]();
