/** Images that nodes need besides Berth's own, made here: nothing is pulled. */
import { copyFile, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { findBuilder } from '../../images/builder.ts';
import { PAUSE_IMAGE } from './configuration.ts';

/** Does nothing until it is killed. */
const DOCKERFILE = `FROM scratch
COPY busybox /busybox
ENTRYPOINT ["/busybox", "sleep", "2147483647"]
`;
/** Debian's static build. */
const BUSYBOX = '/bin/busybox';

/** Writes the image that holds a Pod's namespaces to `archive`. */
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
