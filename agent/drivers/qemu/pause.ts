/** Guests that stand still while their machine runs: QEMU's run states for it, and how they come and go. */
import type { StateFile } from './state.ts';
import type { QmpConnection } from './qmp.ts';

/** Somebody stopped the guest. */
export const PAUSED = 'paused';
/** QEMU did: a write of the guest found the host's disk full. It is done again when the guest goes on. */
const DISK_FULL = 'io-error';
/** States in which QEMU waits for somebody to say "go on": what an agent that died in the middle leaves behind. */
const INTERRUPTED: ReadonlySet<string> = new Set([PAUSED, 'prelaunch', 'postmigrate', 'finish-migrate']);

export function isStill(status: string): boolean {
  return status === PAUSED || status === DISK_FULL;
}

export function isInterrupted(status: string): boolean {
  return INTERRUPTED.has(status);
}

interface Pausable {
  readonly state: StateFile;
  /** Undefined when the hypervisor has ended. */
  connect(): Promise<QmpConnection | undefined>;
}

/** Written down first: an agent that dies in between finds out what is meant. */
export async function pauseGuest(machine: Pausable): Promise<void> {
  await machine.state.update({ paused: true });
  const qmp = await machine.connect();
  await qmp?.execute('stop');
}

export async function unpauseGuest(machine: Pausable): Promise<void> {
  await machine.state.update({ paused: false });
  const qmp = await machine.connect();
  await qmp?.execute('cont');
}
