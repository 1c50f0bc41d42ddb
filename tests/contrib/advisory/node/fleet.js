// One process of a Node service under the guideline. CRON_JOBS, DATABASE_URL and SECONDS are its environment; TAKES is
// how long each job's handler takes, in milliseconds. SKEW_MS moves this process's clock, as on a host that is off.
'use strict';

const skew = Number(process.env.SKEW_MS || 0);
if (skew) {
  const Real = Date;
  global.Date = class extends Real {
    constructor(...given) {
      if (given.length) super(...given);
      else super(Real.now() + skew);
    }
    static now() {
      return Real.now() + skew;
    }
  };
}

const cron = require('node-cron');
const { Client } = require('pg');

// The guideline's helper, word for word but for its log lines.
class DistributedCron {
  constructor(pgClient) {
    this.pg = pgClient;
  }

  schedule(schedule, lockKey, job) {
    return cron.schedule(schedule, async () => {
      let acquired = false;
      try {
        const res = await this.pg.query('SELECT pg_try_advisory_lock($1) AS acquired', [lockKey]);
        acquired = !!res.rows?.[0]?.acquired;
        if (!acquired) {
          return;
        }
        await job();
      } finally {
        if (acquired) {
          await this.pg.query('SELECT pg_advisory_unlock($1)', [lockKey]);
        }
      }
    });
  }
}

async function main() {
  const jobs = JSON.parse(process.env.CRON_JOBS);
  const takes = JSON.parse(process.env.TAKES);
  const locks = new Client({ connectionString: process.env.DATABASE_URL });
  const log = new Client({ connectionString: process.env.DATABASE_URL });
  await locks.connect();
  await log.connect();
  const dcron = new DistributedCron(locks);
  const running = new Set();

  async function run(name) {
    // The tick as this process's clock has it.
    const began = await log.query(
      "INSERT INTO runs (job, who, fired, began) VALUES ($1, $2, $3, clock_timestamp()) RETURNING id",
      [name, `node:${process.pid}`, new Date()],
    );
    await new Promise((resolve) => setTimeout(resolve, takes[name]));
    await log.query('UPDATE runs SET ended = clock_timestamp() WHERE id = $1', [began.rows[0].id]);
  }

  const tasks = Object.entries(jobs).map(([name, cfg]) =>
    dcron.schedule(cfg.schedule, cfg.lockKey, () => {
      const mine = run(name);
      running.add(mine);
      return mine.finally(() => running.delete(mine));
    }),
  );
  console.log('ready');
  await new Promise((resolve) => setTimeout(resolve, Number(process.env.SECONDS) * 1000));
  for (const task of tasks) {
    await task.stop();
  }
  // A client answers in order: after this query, no tick waits for its key, and every unlock has been carried out.
  do {
    await Promise.allSettled([...running]);
    await new Promise(setImmediate);
    await locks.query('SELECT 1');
    await new Promise(setImmediate);
  } while (running.size);
  await locks.end();
  await log.end();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
