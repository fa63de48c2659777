/** Builds images that nodes need besides Berth's own. Nothing is pulled. */
import { copyFile, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { findBuilder } from '../../images/builder.ts';
import { PAUSE_IMAGE } from './configuration.ts';

/** Image that does nothing until its process is killed. */
const DOCKERFILE = `FROM scratch
COPY busybox /busybox
ENTRYPOINT ["/busybox", "sleep", "2147483647"]
`;
/** Static build from Debian. */
const BUSYBOX = '/bin/busybox';

/** Writes the image of the container that holds a Pod's namespaces to `archive`. */
export async function makePauseImage(archive: string): Promise<void> {
  const builder = await findBuilder();
  const context = await mkdtemp(join(tmpdir(), 'berth-pause-'));
  try {
    const file = join(context, 'Dockerfile');
    await writeFile(file, DOCKERFILE);
    await copyFile(BUSYBOX, join(context, 'busybox'));
    await builder.build({ tag: PAUSE_IMAGE, file, context });
    await builder.save(PAUSE_IMAGE, archive);
  } finally {
    await rm(context, { recursive: true, force: true });
  }
}
