/** Connections and timers of the agent for one QEMU machine. These connections and timers end with the agent's process. */
import { ConsoleStore } from '../../console/store.ts';
import type { MachineFolder } from '../driver.ts';
import { DiskCopies } from './diskcopies.ts';
import { DisplayDpi } from './display/dpi.ts';
import { MachineGuest } from './guest.ts';
import type { MachineContext } from './launch.ts';
import { QemuMachine } from './machine.ts';
import { MachineStreams } from './streams.ts';

export interface Held {
  machine: QemuMachine;
  copies: DiskCopies;
  console: ConsoleStore;
  streams: MachineStreams;
  guest: MachineGuest;
  dpi: DisplayDpi;
}

export function hold(folder: MachineFolder, context: MachineContext): Held {
  const machine = new QemuMachine(folder, context);
  return {
    machine,
    copies: new DiskCopies(folder, machine, context),
    console: new ConsoleStore(folder.path, { log: 'serial', logger: context.logger }),
    streams: new MachineStreams(folder, machine, context.logger),
    guest: new MachineGuest(machine, context.logger),
    dpi: new DisplayDpi(folder, machine, context),
  };
}
