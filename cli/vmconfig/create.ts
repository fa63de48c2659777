/** Creates VM configs, from flags or from a file. */
import { vmConfigSpec } from '../../api/http/vmspec.ts';
import type { VMConfig } from '../../api/v1alpha1/vmconfig.ts';
import { VM_CONFIGS } from '../../api/v1alpha1/resources.ts';
import type { Unsaved } from '../../kube/objects.ts';
import { withCluster } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { createNamed } from '../objects/create.ts';
import { type FileFlag, fileIn } from '../objects/fileflag.ts';
import { createdSentence, createFromFile } from '../objects/fromfile.ts';
import { inFlags } from '../objects/invalid.ts';
import { report } from '../objects/kind.ts';
import { FLAG_BY_MACHINE_FIELD, type MachineFlags, machineRequest } from '../objects/machineflags.ts';
import type { Terminal } from '../terminal.ts';
import { VM_CONFIG_KIND } from './kind.ts';

export interface VMConfigFlags extends MachineFlags, FileFlag {
  readonly type?: 'arm64' | 'amd64';
}

const FLAG_BY_FIELD = { ...FLAG_BY_MACHINE_FIELD, 'spec.architecture': '--type' };

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
    const objects = [await made.catch((error: unknown) => Promise.reject(inFlags(error, FLAG_BY_FIELD)))];
    const sentence = createdSentence(VM_CONFIG_KIND);
    await report(terminal, globals, { kind: VM_CONFIG_KIND, objects, sentence });
  });
}

function configOf(name: string | undefined, flags: VMConfigFlags): Unsaved<VMConfig> {
  const { image, iso, memory, type } = flags;
  if (name === undefined) {
    throw new CommandError('Give the name of the VM config, or a file with -f', EXIT.usage);
  }
  if ((image === undefined) === (iso === undefined)) {
    throw new CommandError('Name the source of the VMs: either --image or --iso', EXIT.usage);
  }
  const spec = vmConfigSpec({ ...machineRequest(flags), type });
  // The function that made the spec can only set a memory that is given as a number of GiB, as in requests to the HTTP API. The flag gives
  // the memory as a quantity, so this line sets the memory.
  return { metadata: { name }, spec: { ...spec, memory } };
}
