/**
 * Guests that print as much as they can, and many readers of their consoles, with and without an agent. The test watches files, memory and
 * Leases.
 */
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, statSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import type { ClientRequest, IncomingMessage } from 'node:http';
import { request } from 'node:https';
import { delimiter, join } from 'node:path';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { type LogName, listSegments } from '../../agent/console/logwriter.ts';
import { NODES } from '../../kube/core.ts';
import { type Connection, loadConnection } from '../../kube/credentials.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { folderOf, type Host, makeHost, planFor, terminate } from '../worlds/qemuguest.ts';
import { type MachineOnHost, SET_UP_MILLISECONDS, STEP, World } from '../worlds/vm.ts';
import { waitFor } from '../../hack/wait.ts';
import { scaled, tried } from './support/attempts.ts';
import { renewed } from './support/doors.ts';
import { makePrinter, printedLine, type Printing } from '../fixtures/printer.ts';
import { makeFolder } from '../support/folder.ts';

/**
 * Answers to readers beyond the limits. One limit counts readers. The other counts connections of the API server, which then reports how
 * its connection ended.
 */
const REFUSED = /the server has received too many requests|connection reset by peer|EOF/;
const MEBIBYTE = 1024 * 1024;
const LOG_LIMIT_BYTES = 8 * MEBIBYTE;
/** Time limit for a guest to print everything. An emulated guest prints about 0.5 MiB in a second, and the machine may have other work. */
const PRINT = { deadlineMilliseconds: 900_000, intervalMilliseconds: 500 };
const TEST_MILLISECONDS = 1_000_000;

/** Returns the size of all files of a log together, in bytes. Fails if there is no file. */
function bytesOf(folder: string, log: LogName): number {
  const sizes = listSegments(folder, log).map(({ path }) => statSync(path).size);
  expect(sizes.length).toBeGreaterThan(0);
  return sizes.reduce((sum, size) => sum + size, 0);
}

/** Waits until the guest has printed its last line, although nobody reads. Checks the size of its log all the time. */
async function untilPrinted(folder: string): Promise<void> {
  await waitFor(
    'the guest to print its last line',
    () => {
      expect(bytesOf(folder, 'serial')).toBeLessThanOrEqual(LOG_LIMIT_BYTES);
      const last = listSegments(folder, 'serial').at(-1)?.path ?? '';
      return readFileSync(last, 'latin1').endsWith('\nthe end\n');
    },
    PRINT,
  );
}

describe('a console of 8 MiB and its readers', () => {
  const NODE = 'log-host';
  const FENCE_SECONDS = 20;
  /** Largest number of readers of one Pod, as in `agent/kubelet/targets.ts`. */
  const POD_READERS = 16;
  const FOLLOWERS = 50;
  const TAILS = 200;
  /**
   * Each reader may hold 1 MiB, and each of those that are refused some KiB; the rest is the collector's. Runs grow by 23 to 101 MB, and a
   * collector that gets no time lets them grow more. Without bounds the followers would hold 400 MiB.
   */
  const GROWTH_LIMIT_BYTES = 256 * MEBIBYTE;
  /** 8 MiB of the store contain at least 40,000 empty lines, because each line has its time. */
  const LINES_KEPT = 40_000;
  const LINES = scaled(2_000_000);

  let world: World;
  let connection: Connection;
  const opened: ClientRequest[] = [];

  beforeAll(async () => {
    world = await World.start({
      name: 'hostile-logs',
      architecture: 'amd64',
      hosts: { [NODE]: '127.0.0.1' },
      agentConfig: { fenceAfterSeconds: FENCE_SECONDS },
    });
    connection = await loadConnection({ kubeconfigPath: world.cluster.kubeconfig });
    await makePrinterImage('lines', { pieces: LINES, what: 'lines', end: 'halt' });
    // An empty line takes 28 bytes in the store. This number of lines fills both of its files.
    await makePrinterImage('empty', {
      pieces: Math.ceil(LOG_LIMIT_BYTES / 28 / 64),
      what: 'line ends',
      end: 'halt',
    });
  }, SET_UP_MILLISECONDS);

  afterEach(() => {
    for (const one of opened.splice(0)) {
      one.destroy();
    }
  });

  afterAll(async () => await world?.[Symbol.asyncDispose]());

  async function makePrinterImage(name: string, printing: Printing): Promise<void> {
    await makePrinter(join(world.shared, `${name}.img`), printing);
    await world.makeImage(name, `${name}.img`);
  }

  async function runPrinter(name: string): Promise<MachineOnHost> {
    await world.makeVM(name, { image: name });
    await world.vms.waitForPhase(name, 'Running', undefined, STEP);
    return await world.machine(name);
  }

  /** Sends a request as the administrator. The body of the answer is not read. */
  async function open(url: string): Promise<IncomingMessage> {
    const { clientCertificate: cert, clientKey: key } = connection;
    const asked = request(url, { agent: false, cert, key, rejectUnauthorized: false });
    opened.push(asked);
    asked.end();
    const [response] = (await once(asked, 'response')) as [IncomingMessage];
    // A test that closes the connection in the middle of an answer expects this error.
    asked.on('error', () => undefined);
    response.on('error', () => undefined);
    return response;
  }

  async function read(url: string): Promise<{ status: number | undefined; said: string }> {
    const response = await open(url);
    return { status: response.statusCode, said: await text(response) };
  }

  /** Returns the URL that `kubectl logs` uses. */
  function logOf(vm: string, query: string): string {
    return `${connection.server}/api/v1/namespaces/${world.vms.namespace}/pods/${vm}/log?${query}`;
  }

  /** Waits until the last line of the console can be read. */
  async function untilShown(vm: string): Promise<void> {
    await waitFor(
      `the console of ${vm} to be shown to its end`,
      async () => {
        const { said } = await read(logOf(vm, 'tailLines=1'));
        if (said !== 'the end\n') {
          throw new Error(said);
        }
        return true;
      },
      STEP,
    );
  }

  /** Asks the agent itself, because the API server leaves out the message of the agent. */
  async function askAgent(vm: string): Promise<{ status: number | undefined; said: string }> {
    const { status } = await world.cluster.client().get(NODES, { name: NODE });
    const port = status?.daemonEndpoints?.kubeletEndpoint?.Port ?? 0;
    return await read(
      `https://127.0.0.1:${port}/containerLogs/${world.vms.namespace}/${vm}/machine?tailLines=1`,
    );
  }

  function agentBytes(): number {
    const pid = readFileSync(join(world.cluster.directory, `${NODE}.pid`), 'utf8').trim();
    const kibibytes = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
    return Number(kibibytes) * 1024;
  }

  it(
    'a guest that prints without end while the agent is away is not held up, fills no disk, and its newest lines are shown',
    async (context) => {
      const { folder } = await runPrinter('lines');
      const host = world.host(NODE);
      await host.kill();
      await untilPrinted(folder);
      tried(context, `${(LINES * 64) / MEBIBYTE} MiB on the console without an agent`, '8 MiB kept at most');
      await host.startAgain();
      await untilShown('lines');
      const lines = (await read(logOf('lines', ''))).said.split('\n').slice(0, -1);
      expect(lines.at(-1)).toBe('the end');
      const newest = lines.slice(-LINES_KEPT - 1, -1);
      expect(newest).toEqual(
        Array.from({ length: LINES_KEPT }, (_, index) => printedLine(LINES - LINES_KEPT + index)),
      );
    },
    TEST_MILLISECONDS,
  );

  it(
    '200 readers of the last of 300,000 empty lines are served or refused, and the Leases are renewed meanwhile',
    async (context) => {
      const { folder } = await runPrinter('empty');
      await untilPrinted(folder);
      await untilShown('empty');
      const before = agentBytes();
      const tail = async (): Promise<void> => {
        const response = await open(logOf('empty', 'tailLines=1'));
        tried(context, 'the last of 8 MiB of empty lines', String(response.statusCode));
        expect(await text(response)).toMatch(response.statusCode === 200 ? /^the end\n$/ : REFUSED);
      };
      await Promise.all([renewed(world, NODE), ...Array.from({ length: TAILS }, tail)]);
      expect(agentBytes() - before).toBeLessThan(GROWTH_LIMIT_BYTES);
      expect(await read(logOf('empty', 'tailLines=1'))).toEqual({ status: 200, said: 'the end\n' });
    },
    TEST_MILLISECONDS,
  );

  it(
    '50 followers that read nothing: 16 are taken, the others are told why not, and other Pods are served meanwhile',
    async (context) => {
      const before = agentBytes();
      const answers = await Promise.all(
        Array.from({ length: FOLLOWERS }, () => open(logOf('lines', 'follow=true'))),
      );
      for (const { statusCode } of answers) {
        tried(context, 'a stalled follower', String(statusCode));
      }
      const refused = answers.filter(({ statusCode }) => statusCode !== 200);
      expect(refused).toHaveLength(FOLLOWERS - POD_READERS);
      expect(refused.map(({ statusCode }) => statusCode)).toEqual(refused.map(() => 429));
      expect(await askAgent('lines')).toEqual({
        status: 429,
        said: `Pod ${world.vms.namespace}/lines has ${POD_READERS} open logs, the maximum; try again later\n`,
      });
      expect(await read(logOf('empty', 'tailLines=1'))).toEqual({ status: 200, said: 'the end\n' });
      await renewed(world, NODE);
      expect(agentBytes() - before).toBeLessThan(GROWTH_LIMIT_BYTES);
      for (const one of opened.splice(0)) {
        one.destroy();
      }
      await untilShown('lines');
    },
    TEST_MILLISECONDS,
  );

  it(
    'the last words of a hypervisor that ends while the agent is away are told, and its machine starts again',
    async () => {
      const { process: hypervisor } = await world.machine('lines');
      const host = world.host(NODE);
      await host.kill();
      await terminate(hypervisor.pid);
      await host.startAgain();
      const reported = /HostLost .*The machine ended .*: terminating on signal 15 from pid \d+/;
      await waitFor(
        'the Pod to tell',
        async () => reported.test(await world.kubectl('describe', 'pod', 'lines')),
        STEP,
      );
      await waitFor(
        'the machine to run again',
        async () => (await world.vms.pod('lines')).status?.containerStatuses?.[0]?.restartCount === 1,
        STEP,
      );
    },
    TEST_MILLISECONDS,
  );
});

describe('a hypervisor that says too much', () => {
  const uid = '0b7e5c1a-9d7f-4a57-8d3b-5f1f6f0c0011';
  /** Option of QEMU with which it prints 62 bytes for each byte of the guest. */
  const TRACE = '-trace enable=serial_write';
  let host: Host;

  beforeEach(async () => {
    host = await makeHost();
  });
  afterEach(async () => await host.end());

  const folder = (): ReturnType<typeof folderOf> => folderOf(host, uid);

  /** Makes a QEMU that traces everything, and lets the driver find only this one. */
  async function makeTalkative(): Promise<void> {
    const name = 'qemu-system-x86_64';
    const { stdout } = await promisify(execFile)('which', [name]);
    const folder = makeFolder();
    const script = `#!/bin/sh\nexec ${stdout.trim()} "$@" ${TRACE}\n`;
    await writeFile(join(folder, name), script, { mode: 0o755 });
    vi.stubEnv('PATH', `${folder}${delimiter}${process.env['PATH']}`);
    onTestFinished(async () => {
      vi.unstubAllEnvs();
    });
  }

  /** Starts a guest. Resolves with the process id of its hypervisor. */
  async function run(printing: Printing): Promise<number> {
    await makeTalkative();
    const path = join(host.directory, 'printer.img');
    await makePrinter(path, printing);
    const plan = planFor('amd64', await freePort());
    const base = { path, digest: 'sha256:unused', format: 'raw', virtualSizeBytes: 4 * MEBIBYTE } as const;
    await host.driver.create(folder(), plan, base);
    await host.driver.start(folder(), plan);
    const state = await host.driver.inspect(folder());
    if (state.kind !== 'running') {
      throw new Error(`the machine is ${state.kind}`);
    }
    return state.pid;
  }

  async function ended(): Promise<{ reason: string; message: string }> {
    return await waitFor(
      'the machine to have ended',
      async () => {
        const state = await host.driver.inspect(folder());
        return state.kind === 'exited' && state;
      },
      PRINT,
    );
  }

  it(
    'while the agent is away fills no disk, and its last words are told',
    async (context) => {
      const pid = await run({ pieces: scaled(100_000), what: 'lines', end: 'halt' });
      await host.driver.close();
      await untilPrinted(folder().path);
      expect(bytesOf(folder().path, 'hypervisor')).toBeLessThanOrEqual(LOG_LIMIT_BYTES);
      expect(listSegments(folder().path, 'hypervisor')[0]?.start).toBeGreaterThan(0);
      tried(
        context,
        `${Math.round((scaled(100_000) * 64 * 62) / MEBIBYTE)} MiB of a hypervisor`,
        '8 MiB kept',
      );
      await terminate(pid);
      await host.restartAgent();
      const { reason, message } = await ended();
      expect(reason).toBe('Crashed');
      expect(message).toMatch(/serial_write[^]*terminating on signal 15 from pid \d+ \(.*\)$/);
    },
    TEST_MILLISECONDS,
  );

  it(
    'runs on, and its guest too, when its log writer is killed',
    async () => {
      const pid = await run({ pieces: 5_000, what: 'lines', end: 'power off' });
      const [writer] = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ');
      // The writer sets its process name some milliseconds after its start.
      await waitFor('the log writer to have its name', () =>
        readFileSync(`/proc/${writer}/cmdline`, 'latin1').startsWith('berth-log-writer'),
      );
      process.kill(Number(writer), 'SIGKILL');
      expect(await ended()).toMatchObject({ reason: 'GuestShutdown' });
      expect(bytesOf(folder().path, 'serial')).toBeLessThan(5_000 * 64);
    },
    TEST_MILLISECONDS,
  );
});
