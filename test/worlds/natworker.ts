/**
 * A process that acts in a network namespace for a test. On requests over Node's IPC, it drives a NAT network, serves clients and
 * sends requests. Each namespace needs its own process, because Node cannot change its own namespace.
 */
import { join } from 'node:path';
import { spawn } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { Resolver } from 'node:dns/promises';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer as createHttpServer, type IncomingMessage, request as httpRequest } from 'node:http';
import { connect, isIPv4 } from 'node:net';
import { text } from 'node:stream/consumers';
import { pino } from 'pino';
import type { BaseImage, MemoryFiles } from '../../agent/disks/disk.ts';
import type { MachineFolder, VmLaunchPlan } from '../../agent/drivers/driver.ts';
import { seedPages } from '../../agent/seed/seed.ts';
import type { NatOptions } from '../../agent/network/nat/layout.ts';
import { NatNetwork } from '../../agent/network/nat/nat.ts';
import type { AttachOptions, NamespaceOptions, Network } from '../../agent/network/network.ts';
import { UserGuard, type UserGuardOptions, UserNetwork } from '../../agent/network/user.ts';
import { portRulesSchema } from '../../api/v1alpha1/ports.ts';
import { limitTime, run } from '../../base/exec.ts';
import { type Host, makeHost } from './qemuguest.ts';
import { inGuest, saveWithMemory } from './warmimage.ts';

/** Default time limit for a page, in milliseconds. It is long, because the machine may be busy. */
const PAGE_TIMEOUT_MILLISECONDS = 20_000;
/** Default time limit for an answer or a connection, in milliseconds. It is short, because most are blocked, which takes the whole time. */
const ANSWER_TIMEOUT_MILLISECONDS = 1_500;
/** Time limit for one answer of a DNS server, and number of queries. */
const DNS_QUERY = { timeout: 5_000, tries: 4 };

const RESEND_MILLISECONDS = 100;

/** Starts of a program whose mean is compared with a check: about 200 ms of CPU time, which is many ticks. */
const COMPARED_STARTS = 100;
/** Time limit for the start of a program that does nothing. It takes some milliseconds. */
const START_MILLISECONDS = 10_000;

let network: Network | undefined;
let machines: Host | undefined;

function opened(): Network {
  if (!network) {
    throw new Error('open comes first');
  }
  return network;
}

function openedMachines(): Host {
  if (!machines) {
    throw new Error('openMachines comes first');
  }
  return machines;
}

export const actions = {
  async open(options: NatOptions): Promise<void> {
    const pages = seedPages(join(options.directory, '..', 'machines'));
    network = new NatNetwork(options, pages, pino({ level: 'silent' }));
    await network.setUp();
  },
  /** Opens QEMU's own network, with the rules that an agent as root adds. */
  async openUser(hostAddress: string, guard: UserGuardOptions): Promise<void> {
    const ports = portRulesSchema.parse({});
    network = new UserNetwork({ hostAddress, ports, guard: new UserGuard(guard) });
    await network.setUp();
  },
  attach: (uid: string, options: AttachOptions) => opened().attach(uid, options),
  attachNamespace: (uid: string, options: NamespaceOptions) => opened().attachNamespace(uid, options),
  detach: (uid: string) => opened().detach(uid),
  address: (uid: string) => opened().address(uid),
  attached: () => opened().attached(),
  /** Opens a driver whose machines have their network devices in this namespace. Returns its folder. */
  async openMachines(): Promise<string> {
    machines = await makeHost();
    return machines.directory;
  },
  endMachines: () => openedMachines().end(),
  createMachine: (folder: MachineFolder, plan: VmLaunchPlan, base: BaseImage) =>
    openedMachines().driver.create(folder, plan, base),
  startMachine: (folder: MachineFolder, plan: VmLaunchPlan) => openedMachines().driver.start(folder, plan),
  startFromMemory: (folder: MachineFolder, plan: VmLaunchPlan, memory: MemoryFiles) =>
    openedMachines().driver.startFromMemory(folder, plan, memory),
  saveMachine: (folder: MachineFolder, name: string) => saveWithMemory(openedMachines(), folder, name),
  inGuest: (folder: MachineFolder, script: string) => inGuest(openedMachines().driver, folder, script),
  close: () => opened().close(),
  check: () => opened().check(),
  /**
   * Runs several checks one after another. `starts` is the mean CPU time of a check, of this process and of the commands that it ran,
   * divided by the CPU time of the start of a program that does nothing. Both times grow with the load of the machine.
   */
  async checks(count: number): Promise<{ repaired: string[]; faults: string[]; starts: number }> {
    const repaired: string[] = [];
    const faults: string[] = [];
    const start = await startMilliseconds();
    const before = cpuMilliseconds();
    for (let i = 0; i < count; i++) {
      const report = await opened().check();
      repaired.push(...report.repaired);
      faults.push(...report.faults);
    }
    return { repaired, faults, starts: (cpuMilliseconds() - before) / count / start };
  },
  /** Answers every request with the address of its sender. The default address is every address of this namespace. */
  serveHttp(port: number, address?: string): Promise<void> {
    const server = createHttpServer((request, response) => {
      // A client must not use its connection again: the connection may go to a program that has ended.
      response.setHeader('connection', 'close');
      response.end(request.socket.remoteAddress?.replace('::ffff:', '') ?? '');
    });
    return new Promise((resolve, reject) => {
      server.once('error', reject);
      server.listen({ port, host: address }, () => resolve());
    });
  },
  /** Echoes datagrams, and records the sender's address by payload in `heard`. */
  async serveUdp(port: number, address = '0.0.0.0'): Promise<void> {
    const socket = createSocket(isIPv4(address) ? 'udp4' : 'udp6');
    socket.on('message', (payload, sender) => {
      heard[payload.toString()] = sender.address;
      socket.send(payload, sender.port, sender.address);
    });
    await new Promise<void>((resolve) => socket.bind(port, address, resolve));
  },
  heard: () => Promise.resolve(heard),
  /** Sends a datagram to each of many ports. Each datagram is a separate connection. The sender's address can be false. */
  async udpFlood(address: string, ports: { first: number; last: number }, from?: string): Promise<void> {
    const socket = createSocket('udp4');
    socket.on('error', () => undefined);
    await new Promise<void>((resolve) => socket.bind({ address: from }, resolve));
    for (let port = ports.first; port <= ports.last; port++) {
      await new Promise<void>((resolve) => socket.send(from ?? '', port, address, () => resolve()));
    }
    await new Promise<void>((resolve) => socket.close(() => resolve()));
  },
  /** Sends a datagram repeatedly from the same port, until an answer arrives or the time is over. */
  udpExchange(
    address: string,
    port: number,
    text: string,
    timeoutMilliseconds = ANSWER_TIMEOUT_MILLISECONDS,
  ): Promise<string | undefined> {
    const socket = createSocket('udp4');
    return new Promise((resolve) => {
      const finish = (answer: string | undefined) => {
        clearTimeout(timer);
        clearInterval(sending);
        socket.close(() => resolve(answer));
      };
      const timer = setTimeout(() => finish(undefined), timeoutMilliseconds);
      socket.once('message', (payload) => finish(payload.toString()));
      socket.send(text, port, address);
      const sending = setInterval(() => socket.send(text, port, address), RESEND_MILLISECONDS);
    });
  },
  async httpGet(url: string, timeoutMilliseconds = PAGE_TIMEOUT_MILLISECONDS): Promise<string> {
    const response = await fetch(url, { signal: AbortSignal.timeout(timeoutMilliseconds) });
    return await response.text();
  },
  /** Returns the page at an address, asked for from one of this namespace's own addresses. */
  async httpGetFrom(
    localAddress: string,
    url: string,
    timeoutMilliseconds = PAGE_TIMEOUT_MILLISECONDS,
  ): Promise<string> {
    const signal = AbortSignal.timeout(timeoutMilliseconds);
    const asked = httpRequest(url, { localAddress, signal, agent: false }).end();
    const [response] = (await once(asked, 'response')) as [IncomingMessage];
    return await text(response);
  },
  /** Returns the IPv4 addresses of a name, asked for from one server. */
  async lookUp(server: string, name: string): Promise<string[]> {
    const resolver = new Resolver(DNS_QUERY);
    resolver.setServers([server]);
    return await resolver.resolve4(name);
  },
  /** Returns whether a process of this user gets a connection. */
  tcpOpenAs(
    user: number,
    address: string,
    port: number,
    timeoutMilliseconds = ANSWER_TIMEOUT_MILLISECONDS,
  ): Promise<boolean> {
    const child = spawn('bash', ['-c', `: < /dev/tcp/${address}/${port}`], {
      stdio: 'ignore',
      uid: user,
      gid: user,
    });
    limitTime(child, timeoutMilliseconds);
    return once(child, 'exit').then(([code]) => code === 0);
  },
  tcpOpen(
    address: string,
    port: number,
    timeoutMilliseconds = ANSWER_TIMEOUT_MILLISECONDS,
  ): Promise<boolean> {
    const socket = connect({ host: address, port, timeout: timeoutMilliseconds });
    return new Promise((resolve) => {
      const finish = (open: boolean) => {
        socket.destroy();
        resolve(open);
      };
      socket.once('connect', () => finish(true));
      socket.once('timeout', () => finish(false));
      socket.once('error', () => finish(false));
    });
  },
};

/** Returns the CPU time of this process and of the commands that it has run. */
function cpuMilliseconds(): number {
  const fields = readFileSync('/proc/self/stat', 'utf8').split(') ')[1]?.split(' ') ?? [];
  // The fields are utime, stime, cutime and cstime in ticks of 10 ms. The text after the name begins with field 3.
  return [14, 15, 16, 17].reduce((sum, field) => sum + Number(fields[field - 3]) * 10, 0);
}

/** Returns the mean CPU time to start a program that does nothing, of many starts, because the time is counted in ticks of 10 ms. */
async function startMilliseconds(): Promise<number> {
  const before = cpuMilliseconds();
  for (let i = 0; i < COMPARED_STARTS; i++) {
    await run('true', [], { timeoutMilliseconds: START_MILLISECONDS });
  }
  return (cpuMilliseconds() - before) / COMPARED_STARTS;
}

const heard: Record<string, string> = {};

export interface Request {
  id: number;
  action: keyof typeof actions;
  args: unknown[];
}

export type Answer =
  | { id: number; result: unknown }
  | { id: number; error: { message: string; reason: unknown } };

async function answer({ id, action, args }: Request): Promise<Answer> {
  try {
    const perform = actions[action] as (...args: unknown[]) => Promise<unknown>;
    return { id, result: await perform(...args) };
  } catch (error) {
    const { message, reason } = error as Error & { reason?: unknown };
    return { id, error: { message, reason } };
  }
}

if (import.meta.main) {
  process.on('message', (request: Request) => {
    void answer(request).then((reply) => process.send?.(reply));
  });
  process.on('disconnect', () => process.exit());
}
