/** Works with the disks of VMs: saves them as images, commits them, pushes them, and resizes them. */
import { pushedImage, requestCommit, requestResize, savedImage } from '../../actions/disk.ts';
import { pushItem } from '../../api/http/imageitem.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import { IMAGES } from '../../api/v1alpha1/resources.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import type { Globals } from '../globals.ts';
import { IMAGE_KIND } from '../image/kind.ts';
import { checkImageName } from '../image/name.ts';
import { type ImageWork, untilDone } from '../image/work.ts';
import { report } from '../objects/kind.ts';
import { createNamed } from '../objects/create.ts';
import { getNamed } from '../objects/named.ts';
import { print } from '../output.ts';
import type { Terminal } from '../terminal.ts';
import { VM_KIND } from './kind.ts';

export interface Waiting {
  readonly wait: boolean;
  /** Time limit in milliseconds. */
  readonly timeout: number;
}

interface Saving extends Waiting {
  readonly name: string;
  readonly imageName: string;
  readonly description?: string | undefined;
}

/** Makes an Image from the VM's disk. @throws CommandError when the copy fails or is not complete in time; ApiError. */
export async function save(terminal: Terminal, globals: Globals, saving: Saving): Promise<void> {
  const { name, imageName, description } = saving;
  checkImageName(imageName);
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    await getNamed(cluster, VM_KIND, name, terminal.signal);
    const made = savedImage({ namespace, name }, { imageName, description });
    const image = await createNamed(cluster, IMAGES, made, { signal: terminal.signal });
    await finish(terminal, globals, { cluster, image, work: 'save', waiting: saving });
  });
}

/**
 * Replaces the content of the VM's Image with the VM's disk.
 *
 * @throws CommandError when `requestCommit` refuses the commit; errors of {@link save}.
 */
export async function commit(
  terminal: Terminal,
  globals: Globals,
  { name, description, ...waiting }: Omit<Saving, 'imageName'>,
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const vm = await getNamed(cluster, VM_KIND, name, signal);
    const image = await requestCommit(cluster.client, vm, description);
    await finish(terminal, globals, { cluster, image, work: 'commit', waiting });
  });
}

/** Pushes the VM's disk to a registry. @throws errors of {@link save}. */
export async function push(
  terminal: Terminal,
  globals: Globals,
  { name, reference, ...waiting }: Waiting & { readonly name: string; readonly reference: string },
): Promise<void> {
  await withCluster(terminal, globals, async (cluster) => {
    const { namespace } = cluster;
    await getNamed(cluster, VM_KIND, name, terminal.signal);
    const made = pushedImage({ namespace, name }, reference);
    const image = await createNamed(cluster, IMAGES, made, { signal: terminal.signal });
    await finish(terminal, globals, { cluster, image, work: 'push', waiting });
  });
}

/** Requests a larger disk. `size` is a quantity. @throws CommandError when the disk is already larger than `size`; ApiError. */
export async function resize(
  terminal: Terminal,
  globals: Globals,
  { name, size }: { readonly name: string; readonly size: string },
): Promise<void> {
  const { signal } = terminal;
  await withCluster(terminal, globals, async (cluster) => {
    const found = await getNamed(cluster, VM_KIND, name, signal);
    const vm = await requestResize(cluster.client, found, size);
    const sentence = () =>
      `Requested a disk of ${size} for vm ${name}. A running VM gets the new size at its next start`;
    await report(terminal, globals, { kind: VM_KIND, objects: [vm], sentence });
  });
}

interface Begun {
  readonly cluster: Cluster;
  readonly image: Image;
  readonly work: ImageWork;
  readonly waiting: Waiting;
}

/** Waits for the end of the work if the user wants to wait. Then writes the result. */
async function finish(terminal: Terminal, globals: Globals, begun: Begun): Promise<void> {
  const { work, waiting } = begun;
  const image = waiting.wait ? await untilDone(terminal, begun) : begun.image;
  const verb = waiting.wait ? 'Successfully finished' : 'Requested';
  if (work !== 'push') {
    const sentence = (name: string) => `${verb} ${work} of image ${name}`;
    await report(terminal, globals, { kind: IMAGE_KIND, objects: [image], sentence });
    return;
  }
  const item = pushItem(image);
  if (globals.output === 'table' || globals.output === 'wide') {
    terminal.out(`${verb} push ${item.jobName} to ${item.image}\n`);
    return;
  }
  const itemOf = () => ({ name: item.jobName, ...item });
  await print(terminal, globals.output, { rows: [item], columns: [], itemOf });
}
