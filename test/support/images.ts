/** The guest image, and Images of it. */
import { copyFile, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { ImageSpec } from '../../api/v1alpha1/image.ts';
import { type GuestArchitecture, guestImage } from '../../hack/guest-image.ts';
import { IMAGES } from '../../operator/objects/resources.ts';
import type { Cluster } from '../../hack/cluster/index.ts';

/** Path of the guest image. If it has to be made first, which takes minutes, the terminal tells how far that is. */
export function guestFile(architecture: GuestArchitecture): Promise<string> {
  return guestImage(architecture, (text) => process.stderr.write(`guest image: ${text}\n`));
}

/** A folder for the `sharedRoots` of agents, with that image in it as `guest.qcow2`. */
export async function shareGuest(cluster: Cluster, image: string): Promise<string> {
  const folder = join(cluster.directory, 'images');
  await mkdir(folder);
  await copyFile(image, join(folder, 'guest.qcow2'));
  return folder;
}

export async function createImage(
  cluster: Cluster,
  name: string,
  source: ImageSpec['source'],
): Promise<void> {
  const metadata = { name, namespace: 'platform-default' };
  await cluster.client().create(IMAGES, { metadata, spec: { source } });
}
