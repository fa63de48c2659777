/** Stores that earlier agents have written, in `test/fixtures/formerstores/COMMIT`. There, `host` is the server from which they fetched. */
import { createHash } from 'node:crypto';
import { cp, mkdtemp, readFile, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { DISK, DISK_SHA256, FormerServer, MANIFEST_DIGEST } from '../fixtures/formerstore.ts';
import { ensure, openStore } from '../worlds/imagestores.ts';

const FIXTURES = new URL('../fixtures/formerstores/', import.meta.url).pathname;

describe.each(['8ec621d', 'd06dda6'])('the store of an agent of %s', (commit) => {
  let data: string;
  let host: string;
  let server: FormerServer;

  beforeEach(async () => {
    data = await mkdtemp(join(tmpdir(), 'berth-former-'));
    await cp(join(FIXTURES, commit), data, { recursive: true });
    host = await readFile(join(data, 'host'), 'utf8');
    server = await FormerServer.start();
  });

  afterEach(async () => {
    server.end();
    await rm(data, { recursive: true });
  });

  const open = async () =>
    await openStore(data, [], { registries: [{ host: server.host, plainHttp: true }] });

  /** Changes the source of a fetch to the same content on the server of this test. */
  async function moveFetch(key: (host: string) => string): Promise<void> {
    const [from, to] = [host, server.host].map((one) =>
      join(data, 'images/partial', createHash('sha256').update(key(one)).digest('hex')),
    );
    await rename(from ?? '', to ?? '');
  }

  it('is read: its images, their holders, and the machines that run from them', async () => {
    const store = await open();
    expect(store.images().flatMap(({ names }) => names)).toEqual([
      `${host}/team/whole:1`,
      `${host}/team/whole@${MANIFEST_DIGEST}`,
      `berth.dev/team/file@sha256:${DISK_SHA256}`,
      `berth.dev/team/shared@sha256:${DISK_SHA256}`,
    ]);
    const held = store.heldBytes();
    expect(held).toBeGreaterThan(0);
    store.adopt('machine/a', join(data, 'images/file', DISK_SHA256, 'disk'));
    expect(store.heldBytes()).toBe(2 * held);
    // The server from which the image came no longer exists.
    const source = { type: 'storedArtifact' as const, reference: `${host}/team/whole:1` };
    const { path } = await ensure(store, source, 'machine/b');
    expect(await readFile(path)).toEqual(DISK);
  });

  it('continues a pull that was cut: stored chunks are not fetched again', async () => {
    await rm(join(data, 'images/sha256'), { recursive: true });
    await moveFetch((one) => `${MANIFEST_DIGEST} ${one}/team/cut`);
    const { path } = await ensure(await open(), `${server.host}/team/cut:1`, 'machine/c');
    expect(await readFile(path)).toEqual(DISK);
    // The configuration and two of four chunks are fetched.
    expect(server.asked.filter((line) => line.includes('/blobs/'))).toHaveLength(3);
  });

  it('continues a download that was cut: only the rest is fetched', async () => {
    await rm(join(data, 'images/file'), { recursive: true });
    await moveFetch((one) => `${DISK_SHA256} http://${one}/cut`);
    const source = { type: 'http' as const, url: `http://${server.host}/cut`, sha256: DISK_SHA256 };
    const { path } = await ensure(await open(), source, 'machine/d');
    expect(await readFile(path)).toEqual(DISK);
    expect(server.asked).toEqual(['/cut bytes=700-']);
  });
});
