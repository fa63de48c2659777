/**
 * Checks whether a guest is ready: whether its guest agent answers, or whether it accepts TCP connections on a port. The spec of the VM
 * selects one of these checks.
 */
import { connect, type Socket } from 'node:net';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { rest } from '../../base/time.ts';
import type { Pod } from '../../kube/core.ts';
import { GuestLoops } from './loops.ts';
import type { Runtime } from './machine.ts';
import { portsOf } from './ports.ts';

type Readiness = NonNullable<Runtime['readiness']>;

/** Time from a failed check of a guest to the next check. The time is short, because users wait for the guest. */
const NOT_READY_MILLISECONDS = 1_000;
/** Time from a successful check of a guest to the next check. By default, a kubelet's readiness probe has the same period. */
const READY_MILLISECONDS = 10_000;
/**
 * Number of consecutive failed checks after which a ready guest counts as not ready. By default, a kubelet's readiness probe allows the
 * same number.
 */
const FAILURES = 3;
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

/** Checks guests regularly and reports when the readiness of a guest changes. */
export class ReadinessProber extends GuestLoops {
  /** Address at which each machine is checked. The key is the machine's uid. */
  readonly #targets = new Map<string, Target>();
  readonly #changed: (uid: string) => void;
  readonly #wait: typeof rest;

  /**
   * `changed` is called with a machine's uid when its readiness has changed. `wait` is the function that waits between two checks. It takes
   * the time in milliseconds.
   */
  constructor(changed: (uid: string) => void, wait = rest) {
    super();
    this.#changed = changed;
    this.#wait = wait;
  }

  /**
   * If the Pod's machine runs, starts its checks. Otherwise ends the checks. Until the first result, the readiness comes from the Pod's
   * condition `Ready`.
   */
  follow(pod: Readonly<Pod>, runtime: Runtime, forwardAddress: string): void {
    const { machine } = runtime.record;
    if (runtime.state.kind !== 'running' || machine === undefined) {
      this.forget(runtime.folder.uid);
      runtime.readiness = undefined;
      return;
    }
    const said = pod.status?.conditions?.find(({ type }) => type === 'Ready');
    runtime.readiness ??= { ready: said?.status === 'True', message: said?.message ?? '' };
    const ports = portsOf(runtime.record);
    this.watch(runtime, questionFor({ ...machine, ports }, runtime, forwardAddress));
  }

  watch(runtime: Runtime, question: Question): void {
    const { uid } = runtime.folder;
    if (question.kind === 'answer') {
      this.forget(uid);
      runtime.readiness = question.readiness ?? runtime.readiness;
      return;
    }
    const { target } = question;
    const known = this.#targets.get(uid);
    if (known?.host !== target.host || known.port !== target.port) {
      this.start(uid, async (signal) => await this.#run(runtime, target, signal));
      // `start` deletes the machine's earlier target, so the new target is recorded after this call.
      this.#targets.set(uid, target);
    }
  }

  /** Ends the checks of the machine with this uid. */
  override forget(uid: string): void {
    super.forget(uid);
    this.#targets.delete(uid);
  }

  async #run(runtime: Runtime, target: Target, signal: AbortSignal): Promise<void> {
    let failures = 0;
    while (!signal.aborted) {
      const answered = await answers(target);
      failures = answered ? 0 : failures + 1;
      const stays = runtime.readiness?.ready === true && failures < FAILURES;
      if (!signal.aborted) {
        this.#tell(runtime, answered || stays, target);
      }
      await this.#wait(answered ? READY_MILLISECONDS : NOT_READY_MILLISECONDS, signal);
    }
  }

  #tell(runtime: Runtime, ready: boolean, target: Target): void {
    const message = ready
      ? `Port ${target.guestPort} of the guest answers`
      : `The guest does not answer on ${target.host}:${target.port}`;
    if (runtime.readiness?.ready !== ready || runtime.readiness.message !== message) {
      runtime.readiness = { ready, message };
      this.#changed(runtime.folder.uid);
    }
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
  const settled = new AbortController();
  const events = ['connect', 'data', 'end', 'close'] as const;
  // Node.js emits `close` after each `error`, so `close` reports the failure. Without this listener, an `error` would end the process.
  socket.once('error', () => undefined);
  return await new Promise((resolve) => {
    const timer = setTimeout(() => resolve(undefined), milliseconds);
    settled.signal.addEventListener('abort', () => clearTimeout(timer));
    for (const event of events) {
      socket.once(event, () => {
        settled.abort();
        resolve(event);
      });
    }
  });
}
