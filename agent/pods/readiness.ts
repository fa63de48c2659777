/**
 * Checks whether a guest is ready: whether its guest agent or its SSH server answers, or whether it accepts TCP connections on a port. The
 * spec of the VM selects one of these checks.
 */
import { connect, type Socket } from 'node:net';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { UNCHECKED_GUEST } from '../../api/v1alpha1/reasons.ts';
import type { PortForward } from '../drivers/driver.ts';
import { FAILURES, type GuestCheck, PERIODS } from './guestloop.ts';
import type { Runtime } from './machine.ts';

type Readiness = NonNullable<Runtime['readiness']>;

const CONNECT_MILLISECONDS = 1_000;
/**
 * Time in which the agent watches whether a forwarded connection stays open. The agent must watch, because the hypervisor accepts each
 * connection at first, and closes the connection if the guest refuses it.
 */
const HOLD_MILLISECONDS = 300;
/** Time limit for the guest's answer after the agent has closed its half of the connection. */
const ANSWER_MILLISECONDS = 2_000;

/** Time limit for the first line of an SSH server. A busy guest starts a process for each connection. */
const BANNER_MILLISECONDS = 5_000;
/** Line with which an SSH server begins (RFC 4253, section 4.2). Other lines may come before it. */
const BANNER = /^SSH-/m;
/** Number of characters in which the line of the SSH server must come. */
const BANNER_LIMIT_CHARACTERS = 4_096;
/** Port of the SSH server in a guest. */
const SSH_PORT = 22;
/** Address of a port that a driver opens for the check. */
const LOOPBACK = '127.0.0.1';

/** Port of a guest that is checked. */
export interface ReadinessTarget {
  /** Where the port is reached. Undefined if the driver must open a port of the host for the check. */
  at: { host: string; port: number } | undefined;
  /** Port in the guest. It is shown in messages. */
  guestPort: number;
  /**
   * Whether the hypervisor forwards the connection. If true, the hypervisor accepts connections even if no program in the guest accepts
   * them.
   */
  forwarded: boolean;
  /** Whether an SSH server must answer. Otherwise, any program that accepts the connection suffices. */
  ssh: boolean;
}

/** Opens a port of the host that leads to this TCP port of the guest. The result is undefined if that is not possible now. */
export type OpenForward = (guestPort: number) => Promise<PortForward | undefined>;

/**
 * How to find out whether a machine is ready. If `kind` is `probe`, the agent must check a port of the guest. If `kind` is `answer`, the
 * field `readiness` has the result, and no port is checked. `readiness` is undefined if it depends on the guest agent, and the guest agent
 * has not answered yet.
 */
export type Question =
  | { kind: 'answer'; readiness: Readiness | undefined }
  | { kind: 'probe'; target: ReadinessTarget };

const READY: Readiness = { ready: true, message: UNCHECKED_GUEST };

/**
 * Returns how to find out whether the machine is ready. If the address of the guest is unknown, the check uses a host port that is reserved
 * for the machine, or one that the driver opens. `forwardAddress` is the address at which the agent reaches a reserved port.
 */
export function questionFor(
  machine: Machine,
  { address: guestAddress, guest }: Pick<Runtime, 'address' | 'guest'>,
  forwardAddress: string,
): Question {
  const { readiness, ports } = machine;
  if (readiness.type === 'None') {
    return { kind: 'answer', readiness: READY };
  }
  if (readiness.type === 'GuestAgent') {
    return { kind: 'answer', readiness: guest && readinessOf(guest) };
  }
  const ssh = readiness.type === 'SSH';
  const guestPort = ssh ? SSH_PORT : readiness.port;
  if (guestPort === undefined) {
    const message = 'The VM has no port for the readiness check. Set readiness.port';
    return { kind: 'answer', readiness: { ready: false, message } };
  }
  if (guestAddress !== undefined) {
    const at = { host: guestAddress, port: guestPort };
    return { kind: 'probe', target: { at, guestPort, forwarded: false, ssh } };
  }
  const reserved = ports.find((one) => one.guestPort === guestPort && one.protocol === 'TCP');
  const at = reserved && { host: forwardAddress, port: reserved.hostPort };
  return { kind: 'probe', target: { at, guestPort, forwarded: true, ssh } };
}

function readinessOf({ connected }: NonNullable<Runtime['guest']>): Readiness {
  return connected
    ? { ready: true, message: 'The guest agent answers' }
    : { ready: false, message: 'The guest agent does not answer' };
}

/** Checks whether a port of a guest answers. */
export class PortCheck implements GuestCheck<boolean> {
  readonly target: ReadinessTarget;
  readonly #runtime: Runtime;
  readonly #open: OpenForward;
  /** Port of the host that the driver opened. It stays open while the guest is silent, because a silent guest is asked each second. */
  #forward: PortForward | undefined;
  #failures = 0;

  constructor(runtime: Runtime, target: ReadinessTarget, open: OpenForward) {
    this.#runtime = runtime;
    this.target = target;
    this.#open = open;
  }

  get pauseMilliseconds(): number {
    const fine = this.target.ssh ? PERIODS.fineSSH : PERIODS.fine;
    return this.#failures === 0 ? fine : PERIODS.silent;
  }

  async ask(): Promise<boolean> {
    const { at, guestPort } = this.target;
    if (at !== undefined) {
      return (await askPort(at, this.target)) === 'answers';
    }
    this.#forward ??= await this.#open(guestPort);
    if (this.#forward === undefined) {
      return false;
    }
    const answer = await askPort({ host: LOOPBACK, port: this.#forward.port }, this.target);
    if (answer !== 'silent') {
      await this.end();
    }
    return answer === 'answers';
  }

  async end(): Promise<void> {
    const forward = this.#forward;
    this.#forward = undefined;
    await forward?.close();
  }

  take(isAnswered: boolean): boolean {
    const { readiness: before } = this.#runtime;
    this.#failures = isAnswered ? 0 : this.#failures + 1;
    const ready = isAnswered || (before?.ready === true && this.#failures < FAILURES);
    const message = messageOf(this.target, ready);
    this.#runtime.readiness = { ready, message };
    return before?.ready !== ready || before.message !== message;
  }
}

function messageOf({ at, guestPort, ssh }: ReadinessTarget, ready: boolean): string {
  if (ready) {
    return ssh ? 'The SSH server of the guest answers' : `Port ${guestPort} of the guest answers`;
  }
  if (ssh) {
    return `No SSH server of the guest answers on port ${guestPort}`;
  }
  return `The guest does not answer on ${at === undefined ? `port ${guestPort}` : `${at.host}:${at.port}`}`;
}

/** Asks a port. The result is `refused` if the port takes no connection: nothing leads to the guest, for example after a restart. */
async function askPort(
  { host, port }: NonNullable<ReadinessTarget['at']>,
  { forwarded, ssh }: ReadinessTarget,
): Promise<'answers' | 'silent' | 'refused'> {
  const socket = connect({ host, port, allowHalfOpen: true });
  try {
    if ((await next(socket, CONNECT_MILLISECONDS)) !== 'connect') {
      return 'refused';
    }
    const isAnswered = ssh ? await sendsBanner(socket) : !forwarded || (await isHeld(socket));
    return isAnswered ? 'answers' : 'silent';
  } finally {
    socket.destroy();
  }
}

/** Returns whether an SSH server sends its first line. */
async function sendsBanner(socket: Socket): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  const timer = setTimeout(() => resolve(false), BANNER_MILLISECONDS);
  let text = '';
  socket.on('data', (data) => {
    text += data.toString('latin1');
    if (BANNER.test(text) || text.length > BANNER_LIMIT_CHARACTERS) {
      resolve(BANNER.test(text));
    }
  });
  socket.once('end', () => resolve(false)).once('close', () => resolve(false));
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Returns whether a program in the guest has accepted a connection that the hypervisor forwards. The hypervisor accepts every connection
 * itself, so the function looks for one of two signs: the guest sends data, or the guest keeps the connection open until the agent has
 * closed the agent's half.
 */
async function isHeld(socket: Socket): Promise<boolean> {
  const unasked = await next(socket, HOLD_MILLISECONDS);
  if (unasked !== undefined) {
    return unasked === 'data';
  }
  socket.end();
  const answer = await next(socket, ANSWER_MILLISECONDS);
  return answer === 'data' || answer === 'end';
}

/** Resolves with the next event of a connection; undefined if no event comes in time. */
async function next(
  socket: Socket,
  milliseconds: number,
): Promise<'connect' | 'data' | 'end' | 'close' | undefined> {
  const over = new AbortController();
  const events = ['connect', 'data', 'end', 'close'] as const;
  // Node.js emits `close` after each `error`, so `close` reports the failure. Without this listener, an `error` would end the process.
  socket.once('error', () => undefined);
  return await new Promise((resolve) => {
    const timer = setTimeout(() => resolve(undefined), milliseconds);
    over.signal.addEventListener('abort', () => clearTimeout(timer));
    for (const event of events) {
      socket.once(event, () => {
        over.abort();
        resolve(event);
      });
    }
  });
}
