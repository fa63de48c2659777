/**
 * Guests of one tenant whose guest agents answer with megabytes of JSON that is expensive to parse. The host answers its probe in time, and
 * serves another tenant nearly as fast as before.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { request } from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect } from 'node:tls';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { GuestAgent } from '../../agent/drivers/qemu/guestagent.ts';
import { executeInGuest } from '../../agent/drivers/qemu/guestexec.ts';
import { MachineGuest } from '../../agent/drivers/qemu/guest.ts';
import type { QemuMachine } from '../../agent/drivers/qemu/machine.ts';
import { CommandMemory } from '../../agent/kubelet/limit.ts';
import type { KubeletServer } from '../../agent/kubelet/server.ts';
import { rest } from '../../base/time.ts';
import { FIN, SpdyClient } from '../wires/spdyclient.ts';
import { startOpenKubelet } from './support/kubelet.ts';

/** Time limit of the kubelet's readiness probe of the agent. */
const PROBE_LIMIT_MILLISECONDS = 1_000;
/** Times below this number are noise of a busy machine, also in a quiet run. */
const NOISE_MILLISECONDS = 80;
/** Largest ratio of the times of the other tenant, beside the hostile guests and alone. */
const RATIO = 3;
const HOSTILE = ['lists', 'keys', 'numbers', 'output'];
const LOOPS_PER_GUEST = 3;
/** Number of sessions of the other tenant in each run. */
const SESSIONS = 25;
/** Time between two questions about the readiness of a guest. */
const READINESS_MILLISECONDS = 1_000;

const logger = pino({ level: 'silent' });
let folder: string;
let guests: ChildProcess;
let server: KubeletServer;
let port: number;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-shares-'));
  const folders = ['honest', ...HOSTILE].map((name) => join(folder, name));
  await Promise.all(folders.map((path) => mkdir(path)));
  const script = join(import.meta.dirname, 'support', 'guestagents.ts');
  guests = spawn(process.execPath, [script, ...folders], { stdio: ['ignore', 'pipe', 'inherit'] });
  await once(guests.stdout ?? guests, 'data');
  const honest = new GuestAgent(join(folder, 'honest'));
  ({ server, port } = await startOpenKubelet(
    async (command) => await executeInGuest(honest, command),
    new Registry(),
  ));
  server.hasJoined = true;
});

afterAll(async () => {
  guests.kill();
  await server.close();
  await rm(folder, { recursive: true, force: true });
});

/** Runs a command in the guest of the other tenant by `exec`, and returns the time in milliseconds. */
async function execute(): Promise<number> {
  const began = performance.now();
  const socket = connect({ port, host: '127.0.0.1', rejectUnauthorized: false });
  await once(socket, 'secureConnect');
  const upgrade = 'Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io';
  socket.write(`POST /exec/other/vm/machine?command=true&output=1 HTTP/1.1\r\nHost: a\r\n${upgrade}\r\n\r\n`);
  const [answer] = (await once(socket, 'data')) as [Buffer];
  expect(answer.toString()).toMatch(/^HTTP\/1\.1 101 /);
  const client = new SpdyClient(socket);
  const error = await client.open({ streamtype: 'error' }, { flags: FIN });
  const stdout = await client.open({ streamtype: 'stdout' }, { flags: FIN });
  await error.until(({ ended }) => ended);
  const time = performance.now() - began;
  expect({ stdout: stdout.text, status: error.text }).toMatchObject({
    stdout: 'hello\n',
    status: expect.stringContaining('Success') as string,
  });
  client.close();
  return time;
}

/** Sends a readiness probe of the agent, and returns the time in milliseconds. */
async function probe(): Promise<number> {
  const began = performance.now();
  const sent = request({ port, host: '127.0.0.1', path: '/readyz', rejectUnauthorized: false, agent: false });
  sent.end();
  const [answer] = (await once(sent, 'response')) as [NodeJS.ReadableStream & { statusCode: number }];
  answer.resume();
  expect(answer.statusCode).toBe(200);
  return performance.now() - began;
}

/** Returns the largest time of a probe, and the 95th percentile of the other tenant's times. */
async function measure(): Promise<{ probes: number; tenant: number }> {
  const probes: number[] = [];
  const times: number[] = [];
  for (let session = 0; session < SESSIONS; session += 1) {
    const [one, time] = await Promise.all([probe(), execute()]);
    probes.push(one);
    times.push(time);
  }
  const percentile = times.toSorted((a, b) => a - b)[Math.floor(SESSIONS * 0.95)] ?? Infinity;
  return { probes: Math.max(...probes), tenant: percentile };
}

/** Asks for the readiness and the facts of a hostile guest each second, and runs commands in it without a pause. */
async function beBusy(name: string, memory: CommandMemory, signal: AbortSignal): Promise<number> {
  const guestAgent = new GuestAgent(join(folder, name));
  const qmp = {
    status: async () => 'running',
    ask: async () => [{ label: 'agent', 'frontend-open': true }],
  };
  const machine = { watched: { guestAgent, qmp: async () => qmp } } as unknown as QemuMachine;
  const guest = new MachineGuest(machine, logger);
  const command = { path: 'x', arguments: [], signal };
  let commands = 0;
  const run = async (): Promise<void> => {
    while (!signal.aborted) {
      const work = memory.use('hostile', (reserve) => executeInGuest(guestAgent, { ...command, reserve }));
      await work.catch(() => undefined);
      commands += 1;
    }
  };
  const ask = async (): Promise<void> => {
    while (!signal.aborted) {
      await guest.ask({ facts: true, signal }).catch(() => undefined);
      await rest(READINESS_MILLISECONDS, signal);
    }
  };
  await Promise.all([ask(), ...Array.from({ length: LOOPS_PER_GUEST }, run)]);
  return commands;
}

it('four hostile guests of one tenant delay neither the probe of the host nor the commands of others', async () => {
  await measure();
  const quiet = await measure();
  const end = new AbortController();
  const memory = new CommandMemory();
  const busy = HOSTILE.map((name) => beBusy(name, memory, end.signal));
  const beside = await measure();
  end.abort();
  const commands = await Promise.all(busy);

  expect(Math.min(...commands)).toBeGreaterThan(0);
  expect(beside.probes).toBeLessThan(PROBE_LIMIT_MILLISECONDS);
  expect(beside.tenant).toBeLessThan(RATIO * Math.max(NOISE_MILLISECONDS, quiet.tenant));
});
