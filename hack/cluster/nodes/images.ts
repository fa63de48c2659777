/** Builds images that nodes need besides Berth's own. Nothing is pulled. */
import { copyFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { madeOnce, type Recipe } from '../../guest/made.ts';
import { findBuilder } from '../../images/builder.ts';
import { PAUSE_IMAGE } from './configuration.ts';

/** Image that does nothing until its process is killed. */
const DOCKERFILE = `FROM scratch
COPY busybox /busybox
ENTRYPOINT ["/busybox", "sleep", "2147483647"]
`;
/** Static build from Debian. */
const BUSYBOX = '/bin/busybox';
const RECIPE: Recipe = {
  name: 'pause',
  file: 'pause.tar',
  sources: ['images.ts', 'configuration.ts'].map((path) => new URL(path, import.meta.url)),
  tools: {},
};

/** Returns the archive with the image of the container that holds a Pod's namespaces. */
export async function pauseImage(): Promise<string> {
  return await madeOnce(RECIPE, async (work, result) => {
    const builder = await findBuilder();
    const file = join(work, 'Dockerfile');
    await writeFile(file, DOCKERFILE);
    await copyFile(BUSYBOX, join(work, 'busybox'));
    await builder.build({ tag: PAUSE_IMAGE, file, context: work });
    await builder.save(PAUSE_IMAGE, result);
  });
}
