/** Talks to the guest of a running QEMU machine by the guest agent. */
import type { Logger } from 'pino';
import {
  type GuestAnswer,
  type GuestCommand,
  type GuestCommandResult,
  type GuestQuestion,
  StreamRefused,
} from '../driver.ts';
import { hasGuestAgent, setTime } from './guestcommands.ts';
import { executeInGuest } from './guestagent/exec.ts';
import { readFacts } from './guestagent/facts.ts';
import type { QemuMachine } from './machine.ts';

/**
 * Time limit of the guest agent's answer to a ping. A short limit is enough, because the guest agent has just answered another command over
 * the same connection.
 */
const PING_TIMEOUT_MILLISECONDS = 3_000;

export class MachineGuest {
  readonly #machine: QemuMachine;
  readonly #logger: Logger;

  constructor(machine: QemuMachine, logger: Logger) {
    this.#machine = machine;
    this.#logger = logger;
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
    if (!(await hasGuestAgent(qmp))) {
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

  /**
   * Sets the guest's clock to the host's time, because the clock stands still while the guest is paused. Without a guest agent, the clock
   * stays wrong unless the guest itself corrects it. The promise never rejects.
   */
  async setTime(): Promise<void> {
    const hypervisor = this.#machine.watched;
    try {
      const qmp = await hypervisor?.qmp();
      if (hypervisor !== undefined && qmp !== undefined && (await hasGuestAgent(qmp))) {
        await hypervisor.guestAgent.use({}, setTime);
      }
    } catch (error) {
      this.#logger.warn({ uid: hypervisor?.folder.uid, err: error }, 'The clock of a guest was not set');
    }
  }
}
