/**
 * Tenants who take the space for images of others: by sources that announce much and send little, and by bytes that really arrive. The space
 * of the other tenants stays theirs.
 */
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { beforeEach, expect, it, onTestFinished } from 'vitest';
import type { HostImageStore } from '../../agent/images/store.ts';
import { contentName } from '../../api/v1alpha1/cachetargets.ts';
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';
import { waitFor } from '../../hack/wait.ts';
import { ensure, openStore } from '../worlds/imagestores.ts';
import { makeFolder } from '../support/folder.ts';

const MEBIBYTE = 1024 ** 2;
const BUDGET_MEBIBYTES = 30;

let folder: string;
let address: string;
/** Contents by path. At `/slow/N`, the server announces N MiB, sends 64 KiB, and then waits. */
const contents = new Map<string, Buffer>();
/** Names of the images by the names of their contents. A host lists contents alone, because everybody reads its Node. */
const names = new Map<string, string>();
let slow: PromiseWithResolvers<ServerResponse>;

beforeEach(async () => {
  folder = makeFolder();
  contents.clear();
  names.clear();
  slow = Promise.withResolvers<ServerResponse>();
  const server = createServer(({ url = '' }, response) => {
    const content = contents.get(url);
    const announced = Number(url.split('/').at(-1)) * MEBIBYTE;
    response.writeHead(200, { 'content-length': content?.length ?? announced });
    if (content === undefined) {
      response.write(Buffer.alloc(64 * 1024, 1));
      slow.resolve(response);
      return;
    }
    response.end(content);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
});

function image(path: string, mebibytes: number): { url: string; sha256: string } {
  const content = contents.get(path) ?? randomBytes(mebibytes * MEBIBYTE);
  contents.set(path, content);
  return { url: address + path, sha256: createHash('sha256').update(content).digest('hex') };
}

/** Returns an image that never arrives. */
function slowImage(mebibytes: number): MachineImageSource {
  const url = `${address}/slow/${mebibytes}`;
  return { type: 'http', url, sha256: 'a'.repeat(64) };
}

/** Fetches an image for a machine of the tenant. */
async function take(
  store: HostImageStore,
  tenant: string,
  path: `/${string}`,
  mebibytes: number,
): Promise<void> {
  const name = `berth.dev/${tenant}${path}`;
  const source = image(path, mebibytes);
  names.set(contentName(`sha256:${source.sha256}`), name);
  await ensure(store, { type: 'http', ...source }, `machine${path}`, { tenant, name });
  store.cloned(`machine${path}`);
}

function namesIn(store: HostImageStore): string[] {
  return store.images().flatMap((one) => one.names.map((name) => names.get(name) ?? name));
}

it('a server that announces the whole budget and sends 1 KiB per second removes no image, blocks no pull, and ends with TooSlow', async () => {
  let now = 0;
  const clock = (): number => now;
  const store = await openStore(folder, [], { budget: BUDGET_MEBIBYTES * MEBIBYTE, clock });
  await take(store, 'victim', '/left', 20);
  store.release('machine/left');

  const attack = slowImage(BUDGET_MEBIBYTES - 1);
  const attacked = ensure(store, attack, 'machine/slow', { tenant: 'victim' }).catch(
    (error: unknown) => error,
  );
  const response = await slow.promise;
  await take(store, 'victim', '/wanted', 5);
  let isOver = false;
  void attacked.then(() => (isOver = true));
  await waitFor('the slow fetch to end', () => {
    now += 10_000;
    response.write(Buffer.alloc(10 * 1024, 1));
    return isOver;
  });
  expect(await attacked).toMatchObject({ reason: 'TooSlow' });
  expect(namesIn(store)).toEqual(
    expect.arrayContaining(['berth.dev/victim/left', 'berth.dev/victim/wanted']),
  );
});

it('a tenant with half of the space removes nothing of others, and its running fetch ends when they need the space', async () => {
  const store = await openStore(folder, [], { budget: BUDGET_MEBIBYTES * MEBIBYTE });
  await take(store, 'victim', '/left', 8);
  store.release('machine/left');
  await take(store, 'greedy', '/half', 14);
  await expect(take(store, 'greedy', '/more', 10)).rejects.toMatchObject({ reason: 'DiskFull' });
  expect(namesIn(store)).toContain('berth.dev/victim/left');

  // The free space can be used without a limit, until somebody else needs it.
  await take(store, 'victim', '/left', 8);
  const running = ensure(store, slowImage(6), 'machine/slow', { tenant: 'greedy' }).catch(
    (error: unknown) => error,
  );
  await slow.promise;
  await expect(take(store, 'victim', '/wanted', 7)).rejects.toMatchObject({ reason: 'DiskFull' });
  const message = expect.stringContaining('Namespace greedy uses more than half of the space') as string;
  expect(await running).toMatchObject({ reason: 'DiskFull', message });
  await take(store, 'victim', '/wanted', 7);
  expect(namesIn(store).toSorted()).toEqual([
    'berth.dev/greedy/half',
    'berth.dev/victim/left',
    'berth.dev/victim/wanted',
  ]);
});
