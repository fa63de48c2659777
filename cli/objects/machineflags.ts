/** Flags for the fields of a VM and of a VM config, from the table of the fields. */
import { type Command, Option } from 'commander';
import type { MachineRequest } from '../../api/http/vm.ts';
import { VM_FIELD_ROWS } from '../../api/v1alpha1/fields.ts';
import { CommandError, EXIT } from '../errors.ts';
import { BooleanFlag, parseMemory, wholeNumber } from '../flags.ts';

/** Values of the flags that a VM and a VM config share. The flags of the table are read by {@link tableValues}. */
export interface MachineFlags {
  readonly image?: string;
  readonly iso?: string;
  /** Memory as a quantity. */
  readonly memory?: string;
  readonly node?: string;
  readonly tag?: string;
  readonly tagRequired?: boolean;
  readonly scheduler?: 'default' | 'most-allocated';
  readonly vnc?: boolean;
}

/** A flag of the table. */
interface TableFlag {
  readonly row: (typeof VM_FIELD_ROWS)[number];
  readonly option: Option;
}

/** Returns the flags of the table: those that a VM config has, too, or those of a VM alone. */
function tableFlags(isInConfig: true | undefined): TableFlag[] {
  return VM_FIELD_ROWS.flatMap((row) =>
    row.flag === undefined || row.isInConfig !== isInConfig
      ? []
      : [{ row, option: optionFor(row.type, row.flag) }],
  );
}

function optionFor(type: TableFlag['row']['type'], [flag, text]: readonly [string, string]): Option {
  const option = new Option(flag, text);
  if (type === 'integer') {
    return option.argParser(wholeNumber);
  }
  return type === 'memory' ? option.argParser(parseMemory) : option;
}

/** Name of the flag for each field that a VM and a VM config share. */
export const FLAG_BY_MACHINE_FIELD: Readonly<Record<string, string>> = {
  'metadata.name': 'the name',
  ...flagByField(true),
  'spec.placement.node': '--node',
  'spec.placement.tag': '--tag',
  'spec.placement.strategy': '--scheduler',
};

/** Returns the name of the flag for each field of the table: those that a VM config has, too, or those of a VM alone. */
export function flagByField(isInConfig: true | undefined): Record<string, string> {
  return Object.fromEntries(
    tableFlags(isInConfig).map(({ row, option }) => [`spec.${row.name}`, option.long ?? '']),
  );
}

/** Adds the flags of the table that belong to a VM alone. */
export function addOwnFlags(command: Command): Command {
  return addAll(command, undefined);
}

function addAll(command: Command, isInConfig: true | undefined): Command {
  return tableFlags(isInConfig).reduce((all, { option }) => all.addOption(option), command);
}

/** Adds the flags that a VM and a VM config share. */
export function addMachineFlags(command: Command): Command {
  return addAll(command, true)
    .option('--node <host>', 'the only host that may run the VM')
    .option('--tag <tag>', 'prefer hosts with this tag')
    .addOption(new BooleanFlag('--tag-required', 'use only hosts with the tag of --tag'))
    .addOption(
      new Option(
        '--scheduler <way>',
        'how to choose the host: spread VMs over the hosts, or fill one host after the other',
      ).choices(['default', 'most-allocated']),
    )
    .addOption(new BooleanFlag('--vnc', 'serve the display over VNC (default: true)'));
}

/**
 * Returns the fields of a request to the HTTP API, except the memory. Such a request gives the memory as a number of GiB, but the flag
 * gives a quantity. Therefore the caller sets the memory.
 *
 * @throws CommandError when a flag has no effect without another one.
 */
export function machineRequest(flags: MachineFlags): MachineRequest {
  const { node, tag, tagRequired, scheduler } = flags;
  if (tagRequired === true && tag === undefined) {
    throw new CommandError('--tag-required needs --tag', EXIT.usage);
  }
  return { ...tableValues(flags, true), node, tag, tagRequired, scheduler, vncConsole: flags.vnc };
}

/** Returns the fields of a request whose values are those of flags: the ones that a VM config has, too, or the ones of a VM alone. */
export function tableValues(flags: object, isInConfig: true | undefined): Record<string, unknown> {
  const given = flags as Readonly<Record<string, unknown>>;
  return Object.fromEntries(
    tableFlags(isInConfig).flatMap(({ row, option }) =>
      row.http === undefined ? [] : [[row.http, given[option.attributeName()]]],
    ),
  );
}
