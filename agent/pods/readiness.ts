/**
 * Checks whether a guest is ready: whether its guest agent answers, or whether it accepts TCP connections on a port. The spec of the VM
 * selects one of these checks.
 */
import { connect, type Socket } from 'node:net';
import type { Machine } from '../../api/v1alpha1/machine.ts';
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

/** Address at which a guest is checked. */
export interface Target {
  host: string;
  port: number;
  /** Port in the guest. It is shown in messages. */
  guestPort: number;
  /**
   * Whether the hypervisor forwards the connection. If true, the hypervisor accepts connections even if no program in the guest accepts
   * them.
   */
  forwarded: boolean;
}

/**
 * How to find out whether a machine is ready. If `kind` is `probe`, the agent must check a port of the guest. If `kind` is `answer`, the
 * field `readiness` has the result, and no port is checked. `readiness` is undefined if it depends on the guest agent, and the guest agent
 * has not answered yet.
 */
export type Question =
  | { kind: 'answer'; readiness: Readiness | undefined }
  | { kind: 'probe'; target: Target };

const READY: Readiness = { ready: true, message: '' };

/**
 * Returns how to find out whether the machine is ready. If the address of the guest is unknown, the check uses a host port that is reserved
 * for the machine. `forwardAddress` is the address at which the agent reaches that host port.
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
  if (readiness.port === undefined) {
    return unready('The VM has no port for the readiness check. Set readiness.port');
  }
  const { port } = readiness;
  if (guestAddress !== undefined) {
    return { kind: 'probe', target: { host: guestAddress, port, guestPort: port, forwarded: false } };
  }
  const reserved = ports.find((one) => one.guestPort === port && one.protocol === 'TCP');
  return reserved === undefined
    ? unready(
        `The guest port ${port} cannot be checked: no reserved host port leads to it, and the address of the guest is not known yet`,
      )
    : {
        kind: 'probe',
        target: { host: forwardAddress, port: reserved.hostPort, guestPort: port, forwarded: true },
      };
}

function unready(message: string): Question {
  return { kind: 'answer', readiness: { ready: false, message } };
}

function readinessOf({ connected }: NonNullable<Runtime['guest']>): Readiness {
  return connected
    ? { ready: true, message: 'The guest agent answers' }
    : { ready: false, message: 'The guest agent does not answer' };
}

/** Returns whether both are the same address. */
export function isSameTarget(one: Target, other: Target | undefined): boolean {
  return one.host === other?.host && one.port === other.port;
}

/** Checks whether a port of a guest answers. */
export class PortCheck implements GuestCheck<boolean> {
  readonly target: Target;
  readonly #runtime: Runtime;
  #failures = 0;

  constructor(runtime: Runtime, target: Target) {
    this.#runtime = runtime;
    this.target = target;
  }

  get pauseMilliseconds(): number {
    return this.#failures === 0 ? PERIODS.fine : PERIODS.silent;
  }

  async ask(): Promise<boolean> {
    return await answers(this.target);
  }

  take(isAnswered: boolean): boolean {
    const { readiness: before } = this.#runtime;
    this.#failures = isAnswered ? 0 : this.#failures + 1;
    const ready = isAnswered || (before?.ready === true && this.#failures < FAILURES);
    const { host, port, guestPort } = this.target;
    const message = ready
      ? `Port ${guestPort} of the guest answers`
      : `The guest does not answer on ${host}:${port}`;
    this.#runtime.readiness = { ready, message };
    return before?.ready !== ready || before.message !== message;
  }
}

async function answers({ host, port, forwarded }: Target): Promise<boolean> {
  const socket = connect({ host, port, allowHalfOpen: true });
  try {
    const connected = (await next(socket, CONNECT_MILLISECONDS)) === 'connect';
    return connected && (!forwarded || (await isHeld(socket)));
  } finally {
    socket.destroy();
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
