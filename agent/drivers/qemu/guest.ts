/** Talks to the guest of a running QEMU machine by the guest agent. */
import { type GuestCommand, type GuestCommandResult, StreamRefused } from '../driver.ts';
import { executeInGuest } from './guestexec.ts';
import type { QemuMachine } from './machine.ts';

export class MachineGuest {
  readonly #machine: QemuMachine;

  constructor(machine: QemuMachine) {
    this.#machine = machine;
  }

  async execute(command: GuestCommand): Promise<GuestCommandResult> {
    const hypervisor = await this.#machine.hypervisor();
    if (hypervisor === undefined) {
      throw new StreamRefused('The machine does not run');
    }
    return await executeInGuest(hypervisor.guestAgent, command);
  }
}
