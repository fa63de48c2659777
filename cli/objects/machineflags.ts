/** Flags for the fields that a VM and a VM config share. */
import { type Command, Option } from 'commander';
import type { MachineRequest } from '../../api/http/machine.ts';
import { CommandError, EXIT } from '../errors.ts';
import { BooleanFlag, memoryIn, wholeNumber } from '../flags.ts';

export interface MachineFlags {
  readonly image?: string;
  readonly iso?: string;
  readonly cpu?: number;
  /** Memory as a quantity. */
  readonly memory?: string;
  readonly node?: string;
  readonly tag?: string;
  readonly tagRequired?: boolean;
  readonly scheduler?: 'default' | 'most-allocated';
  readonly displayWidth?: number;
  readonly displayHeight?: number;
  readonly displayDpi?: number;
  readonly vnc?: boolean;
}

/** Name of the flag for each field. */
export const FLAG_BY_MACHINE_FIELD: Readonly<Record<string, string>> = {
  'metadata.name': 'the name',
  'spec.image': '--image',
  'spec.iso': '--iso',
  'spec.cpu': '--cpu',
  'spec.memory': '--memory',
  'spec.displayWidth': '--display-width',
  'spec.displayHeight': '--display-height',
  'spec.displayDPI': '--display-dpi',
  'spec.placement.node': '--node',
  'spec.placement.tag': '--tag',
  'spec.placement.strategy': '--scheduler',
};

export function addMachineFlags(command: Command): Command {
  return command
    .option('-i, --image <image>', 'image for the disk')
    .option('--iso <image>', 'ISO for booting')
    .option('-c, --cpu <number>', 'number of virtual processors', wholeNumber)
    .option(
      '-m, --memory <size>',
      'memory, for example 512Mi, 4Gi or 4G; a number without a unit is in GiB',
      memoryIn,
    )
    .option('--node <host>', 'the only host that may run the VM')
    .option('--tag <tag>', 'prefer hosts with this tag')
    .addOption(new BooleanFlag('--tag-required', 'use only hosts with the tag of --tag'))
    .addOption(
      new Option(
        '--scheduler <way>',
        'how to choose the host: spread VMs over the hosts, or fill one host after the other',
      ).choices(['default', 'most-allocated']),
    )
    .option('--display-width <pixels>', 'width of the display', wholeNumber)
    .option('--display-height <pixels>', 'height of the display', wholeNumber)
    .option('--display-dpi <number>', 'dots per inch of the display', wholeNumber)
    .addOption(new BooleanFlag('--vnc', 'serve the display over VNC (default: true)'));
}

/**
 * Returns the fields of a request to the HTTP API, except the memory. Such a request gives the memory as a number of GiB, but the flag
 * gives a quantity. Therefore the caller sets the memory.
 *
 * @throws CommandError when a flag has no effect without another one.
 */
export function machineRequest(flags: MachineFlags): MachineRequest {
  const { image, iso, cpu, node, tag, tagRequired, scheduler, displayWidth, displayHeight } = flags;
  if (tagRequired === true && tag === undefined) {
    throw new CommandError('--tag-required needs --tag', EXIT.usage);
  }
  return {
    image,
    iso,
    cpu,
    node,
    tag,
    tagRequired,
    scheduler,
    displayWidth,
    displayHeight,
    displayDPI: flags.displayDpi,
    vncConsole: flags.vnc,
  };
}
