/** What this process knows of a machine beyond its record: work under way, the last look, what probes say. */
import type { MachineFolder, MachineState } from '../drivers/driver.ts';
import type { NetworkHealth } from '../network/network.ts';
import type { Step } from './plan.ts';
import type { MachinePhase } from './status.ts';

export type TaskKind = Exclude<Step['kind'], 'settled' | 'wait' | 'note' | 'fail'>;

/** One piece of long work on one machine; there is never a second beside it. */
export interface Task {
  readonly kind: TaskKind;
  phase: MachinePhase;
  progressPercent: number | undefined;
  /** Gives up what can be given up: a download. */
  readonly abort: AbortController;
  /** Ends a graceful stop's patience. */
  readonly hurry: AbortController;
  /** When a graceful stop's patience ends by itself, in milliseconds since the epoch. */
  deadline: number | undefined;
}

export interface Readiness {
  ready: boolean;
  message: string;
}

export interface Runtime {
  readonly folder: MachineFolder;
  task: Task | undefined;
  state: MachineState;
  /** The machine is said to run, and this process has not yet seen it do so. */
  unseen: boolean;
  /** Failures in a row of the present step, the earliest time for its next try, and what to tell meanwhile. */
  attempts: number;
  notBefore: number;
  trouble: { reason: string | undefined; message: string } | undefined;
  /** The shortest grace seen so far in the Pod's deletion, and when it ends. */
  leaving: { graceSeconds: number; deadline: number } | undefined;
  readiness: Readiness | undefined;
  network: NetworkHealth | undefined;
  address: string | undefined;
}

export function newRuntime(folder: MachineFolder, unseen: boolean): Runtime {
  return {
    folder,
    task: undefined,
    state: { kind: 'absent' },
    unseen,
    attempts: 0,
    notBefore: 0,
    trouble: undefined,
    leaving: undefined,
    readiness: undefined,
    network: undefined,
    address: undefined,
  };
}

export function newTask(kind: TaskKind, phase: MachinePhase): Task {
  return {
    kind,
    phase,
    progressPercent: undefined,
    abort: new AbortController(),
    hurry: new AbortController(),
    deadline: undefined,
  };
}
