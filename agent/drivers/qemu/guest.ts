/** Talks to the guest of a running QEMU machine by the guest agent. */
import * as z from 'zod';
import {
  type GuestAnswer,
  type GuestCommand,
  type GuestCommandResult,
  type GuestQuestion,
  StreamRefused,
} from '../driver.ts';
import { AGENT_CHARDEV } from './arguments.ts';
import { executeInGuest } from './guestexec.ts';
import { readFacts } from './guestfacts.ts';
import type { QemuMachine } from './machine.ts';
import type { QmpConnection } from './qmp.ts';

/** Time limit of an answer to a ping, over a connection whose first question the guest agent has answered. */
const PING_TIMEOUT_MILLISECONDS = 3_000;

const chardevsSchema = z.array(z.object({ label: z.string(), 'frontend-open': z.boolean() }));

export class MachineGuest {
  readonly #machine: QemuMachine;

  constructor(machine: QemuMachine) {
    this.#machine = machine;
  }

  async ask({ facts, signal }: GuestQuestion): Promise<GuestAnswer> {
    const hypervisor = this.#machine.watched;
    const qmp = await hypervisor?.qmp();
    if (hypervisor === undefined || qmp === undefined) {
      return { kind: 'silent' };
    }
    if ((await qmp.status()) !== 'running') {
      return { kind: 'busy' };
    }
    if (!(await hasAgent(qmp))) {
      return { kind: 'silent' };
    }
    const answer = await hypervisor.guestAgent.ask(signal, async (connection, either) => {
      const options = { timeoutMilliseconds: PING_TIMEOUT_MILLISECONDS, signal: either };
      await connection?.execute('guest-ping', options);
      return connection && { facts: facts ? await readFacts(connection, either) : undefined };
    });
    if (answer === 'busy') {
      return { kind: 'busy' };
    }
    return answer === undefined ? { kind: 'silent' } : { kind: 'answers', ...answer };
  }

  async execute(command: GuestCommand): Promise<GuestCommandResult> {
    const hypervisor = this.#machine.watched;
    if (hypervisor === undefined) {
      throw new StreamRefused('The machine does not run');
    }
    return await executeInGuest(hypervisor.guestAgent, command);
  }
}

/**
 * Returns whether a program in the guest has opened the guest agent's port. So a guest without an agent costs the host one question to
 * QEMU, and no connection that waits for an answer.
 */
async function hasAgent(qmp: QmpConnection): Promise<boolean> {
  const chardevs = await qmp.ask('query-chardev', chardevsSchema);
  return chardevs.some((one) => one.label === AGENT_CHARDEV && one['frontend-open']);
}
