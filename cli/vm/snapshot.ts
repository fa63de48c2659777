/** The noun `snapshot`: VMSnapshots, to which the disk of a VM can be reset. */
import type { Command } from 'commander';
import { notReadyMessage, notReadyReason } from '../../api/http/conditions.ts';
import { vmSnapshotItem } from '../../api/http/vmsnapshot.ts';
import { VM_SNAPSHOTS } from '../../api/v1alpha1/resources.ts';
import type { VMSnapshot } from '../../api/v1alpha1/vmsnapshot.ts';
import { withCluster } from '../cluster.ts';
import { BooleanFlag } from '../flags.ts';
import type { Globals } from '../globals.ts';
import { createdSentence, createNamed } from '../objects/create.ts';
import { type NounKind, report } from '../objects/kind.ts';
import { getNamed } from '../objects/named.ts';
import { addCommonVerbs } from '../objects/verbs.ts';
import type { Terminal } from '../terminal.ts';
import { age } from '../text.ts';
import { VM_KIND } from './kind.ts';

interface CreateFlags {
  readonly vm: string;
  readonly memory?: boolean | undefined;
}

export function addSnapshotCommands(noun: Command, terminal: Terminal): void {
  addCommonVerbs(noun, terminal, SNAPSHOT_KIND);
  noun
    .command('create')
    .description('Keep the disk of a VM as it is now. The VM runs on')
    .argument('<name>', 'name of the snapshot')
    .requiredOption('--vm <name>', 'VM whose disk is kept')
    .addOption(
      new BooleanFlag('--memory', 'also keep the memory of the running VM, from which it continues later'),
    )
    .action(async (name: string, { vm, memory }: CreateFlags, command: Command) => {
      await create(terminal, command.optsWithGlobals<Globals>(), { name, vm, memory });
    });
}

const SNAPSHOT_KIND: NounKind<VMSnapshot> = {
  type: VM_SNAPSHOTS,
  noun: 'snapshot',
  plural: 'snapshots',
  columns: [
    { header: 'NAME', value: ({ metadata }) => metadata.name },
    { header: 'VM', value: ({ spec }) => spec.vmName },
    { header: 'STATUS', value: ({ status }) => status?.phase },
    { header: 'REASON', value: notReadyReason },
    { header: 'SIZE', value: ({ status }) => status?.size },
    { header: 'AGE', value: ({ metadata }) => age(metadata.creationTimestamp) },
    { header: 'STORAGE', value: ({ status }) => status?.storageSize, isWide: true },
    { header: 'MEMORY', value: ({ status }) => status?.memory?.size, isWide: true },
    { header: 'CONSISTENCY', value: ({ status }) => status?.consistency, isWide: true },
    { header: 'MESSAGE', value: notReadyMessage, isWide: true },
  ],
  itemOf: vmSnapshotItem,
  isShared: false,
};

/** @throws CommandError when there is no such VM: its snapshot would wait for it; ApiError. */
async function create(
  terminal: Terminal,
  globals: Globals,
  { name, vm: vmName, memory }: CreateFlags & { readonly name: string },
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    await getNamed(cluster, VM_KIND, vmName, signal);
    const snapshot = { metadata: { name, namespace: cluster.namespace }, spec: { vmName, memory } };
    const objects = [await createNamed(cluster, VM_SNAPSHOTS, snapshot, { signal })];
    const sentence = createdSentence(SNAPSHOT_KIND);
    await report(terminal, globals, { kind: SNAPSHOT_KIND, objects, sentence });
  });
}
