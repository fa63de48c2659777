/** Set-up of the project `oci`. It builds the images if something has changed, and unpacks them. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';
import { buildImages, type ImageName } from '../../hack/images.ts';
import { whyNoContainers } from './host.ts';
import { type UnpackedImage, unpackImage } from './image.ts';

declare module 'vitest' {
  export interface ProvidedContext {
    /** Folders of the unpacked images, or the reason why they cannot be unpacked here. */
    images: Record<ImageName, UnpackedImage> | string;
  }
}

export async function setup(project: TestProject): Promise<(() => Promise<void>) | undefined> {
  const unfit = whyNoContainers();
  if (unfit !== undefined) {
    project.provide('images', unfit);
    return undefined;
  }
  const built = await buildImages({ progress: (text) => process.stderr.write(`images: ${text}\n`) });
  const folder = await mkdtemp(join(tmpdir(), 'berth-images-'));
  project.provide('images', {
    operator: await unpackImage(built.operator.archive, join(folder, 'operator')),
    agent: await unpackImage(built.agent.archive, join(folder, 'agent')),
  });
  return async () => await rm(folder, { recursive: true, force: true });
}
