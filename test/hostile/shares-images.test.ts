/** Sources that announce much and send little: they take no space from images of other tenants, and end. */
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import type { BaseImageSource } from '../../agent/images/store.ts';
import { waitFor } from '../../hack/wait.ts';
import { ensure, openStore } from '../worlds/imagestores.ts';

const MEBIBYTE = 1024 ** 2;
const BUDGET_MEBIBYTES = 30;

it('a server that announces the whole budget and sends 1 KiB per second removes no image, blocks no pull, and ends with TooSlow', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-shares-'));
  onTestFinished(async () => await rm(folder, { recursive: true }));
  const contents = new Map<string, Buffer>();
  const slow = Promise.withResolvers<ServerResponse>();
  const server = createServer(({ url = '' }, response) => {
    const content = contents.get(url);
    response.writeHead(200, { 'content-length': content?.length ?? (BUDGET_MEBIBYTES - 1) * MEBIBYTE });
    if (content === undefined) {
      response.write(Buffer.alloc(64 * 1024, 1));
      slow.resolve(response);
      return;
    }
    response.end(content);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });

  function image(path: string, mebibytes: number): BaseImageSource {
    const content = randomBytes(mebibytes * MEBIBYTE);
    contents.set(path, content);
    const sha256 = createHash('sha256').update(content).digest('hex');
    return { type: 'http', url: `http://127.0.0.1:${(server.address() as AddressInfo).port}${path}`, sha256 };
  }

  let now = 0;
  const clock = (): number => now;
  const store = await openStore(folder, [], { budget: BUDGET_MEBIBYTES * MEBIBYTE, clock });
  const left = image('/left', 20);
  await ensure(store, left, 'machine/left', { name: 'berth.dev/victim/left' });
  store.cloned('machine/left');
  store.release('machine/left');

  const attack = { ...image('/slow', 1) };
  contents.delete('/slow');
  const attacked = ensure(store, attack, 'machine/slow', {}).catch((error: unknown) => error);
  const response = await slow.promise;
  await ensure(store, image('/wanted', 5), 'machine/wanted', { name: 'berth.dev/victim/wanted' });
  let isOver = false;
  void attacked.then(() => (isOver = true));
  await waitFor('the slow fetch to end', () => {
    now += 10_000;
    response.write(Buffer.alloc(10 * 1024, 1));
    return isOver;
  });
  expect(await attacked).toMatchObject({ reason: 'TooSlow' });
  const names = store.images().flatMap((one) => one.names.map((name) => name.replace(/@.*$/, '')));
  expect(names).toEqual(expect.arrayContaining(['berth.dev/victim/left', 'berth.dev/victim/wanted']));
});
