/** The noun `vmconfig`. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import type { Globals } from './globals.ts';
import {
  addFileFlag,
  createdSentence,
  createFromFile,
  createNamed,
  type FileFlag,
  fileIn,
  inFlags,
} from './objects/create.ts';
import {
  addMachineFlags,
  FLAG_BY_MACHINE_FIELD,
  type MachineFlags,
  machineRequest,
  tableValues,
} from './objects/machineflags.ts';
import { addCommonVerbs } from './objects/verbs.ts';
import type { Terminal } from './terminal.ts';
import type { VMConfigItem } from '../api/http/vmconfig.ts';
import { vmConfigItem } from '../api/http/vmitem.ts';
import { formatSize } from '../api/v1alpha1/quantity.ts';
import { VM_CONFIGS } from '../api/v1alpha1/resources.ts';
import type { VMConfig } from '../api/v1alpha1/vmconfig.ts';
import { type NounKind, report } from './objects/kind.ts';
import type { Column } from './output.ts';
import { vmConfigSpec } from '../api/http/vmspec.ts';
import type { Unsaved } from '../kube/objects.ts';
import { withCluster } from './cluster.ts';
import { CommandError, EXIT } from './errors.ts';

export function addVMConfigCommands(noun: Command, terminal: Terminal): void {
  addCommonVerbs(noun, terminal, VM_CONFIG_KIND);
  addMachineFlags(
    addFileFlag(
      noun.command('create').description('Make a VM config, or all VM configs that a file describes'),
    ),
  )
    .argument('[name]', 'name of the VM config')
    .addOption(new Option('--system-serial <text>', 'serial number').hideHelp().argParser(refuseSerial))
    .addOption(new Option('--type <architecture>', 'the same as --architecture').choices(['arm64', 'amd64']))
    .action(async (name: string | undefined, flags: VMConfigFlags, command: Command) => {
      await create(terminal, command.optsWithGlobals<Globals>(), { name, flags });
    });
}

/** @throws InvalidArgumentError, because all VMs of the config would have the same number. */
function refuseSerial(): never {
  throw new InvalidArgumentError('A serial number belongs to a single VM. Give it to `berth vm deploy`.');
}

export const VM_CONFIG_KIND: NounKind<VMConfig> = {
  type: VM_CONFIGS,
  noun: 'vmconfig',
  plural: 'VM configs',
  columns: [
    ofItem('NAME', ({ name }) => name),
    ofItem('IMAGE', ({ image, iso }) => image ?? iso),
    ofItem('CPU', ({ cpu }) => cpu),
    { header: 'MEMORY', value: ({ spec }) => formatSize(spec.memory) },
    ofItem('TYPE', ({ type }) => type),
    ofItem('TAG', ({ tag }) => tag),
    { ...ofItem('NAMESPACE', ({ namespace }) => namespace), isWide: true },
    { ...ofItem('NODE', ({ node }) => node), isWide: true },
    { ...ofItem('SCHEDULER', ({ scheduler }) => scheduler), isWide: true },
  ],
  itemOf: vmConfigItem,
  isShared: true,
};

function ofItem(
  header: string,
  value: (item: VMConfigItem) => string | number | undefined,
): Column<VMConfig> {
  return { header, value: (config) => value(vmConfigItem(config)) };
}

export interface VMConfigFlags extends MachineFlags, FileFlag {
  readonly type?: 'arm64' | 'amd64';
}

/** Creates one VM config from flags, or all VM configs of a file. @throws CommandError when flags contradict each other; ApiError. */
export async function create(
  terminal: Terminal,
  globals: Globals,
  { name, flags }: { name: string | undefined; flags: VMConfigFlags },
): Promise<void> {
  const file = fileIn(name, flags);
  if (file !== undefined) {
    await createFromFile(terminal, globals, VM_CONFIG_KIND, file);
    return;
  }
  const config = configOf(name, flags);
  await withCluster(terminal, globals, async (cluster) => {
    const metadata = { ...config.metadata, namespace: cluster.namespace };
    const { signal } = terminal;
    const made = createNamed(cluster, VM_CONFIGS, { ...config, metadata }, { signal });
    const objects = [
      await made.catch((error: unknown) => Promise.reject(inFlags(error, FLAG_BY_MACHINE_FIELD))),
    ];
    const sentence = createdSentence(VM_CONFIG_KIND);
    await report(terminal, globals, { kind: VM_CONFIG_KIND, objects, sentence });
  });
}

function configOf(name: string | undefined, flags: VMConfigFlags): Unsaved<VMConfig> {
  const { image, iso, type } = flags;
  if (name === undefined) {
    throw new CommandError('Give the name of the VM config, or a file with -f', EXIT.usage);
  }
  if (image === undefined && iso === undefined) {
    throw new CommandError('Name the source of the VMs: --image, --iso or both', EXIT.usage);
  }
  const spec = vmConfigSpec({ ...machineRequest(flags), architecture: type });
  return { metadata: { name }, spec: { ...spec, ...tableValues(flags) } };
}
