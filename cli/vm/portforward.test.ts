import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { portForward, vnc } from './portforward.ts';
import { makeTerminal } from '../../test/fixtures/terminals.ts';

let folder: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-forward-'));
});

afterEach(async () => await rm(folder, { recursive: true }));

it('ends when another VM has the name of the VM', async () => {
  let uid = 'first';
  const server = createServer((_request, response) => {
    response.setHeader('content-type', 'application/json');
    const metadata = { name: 'desk', namespace: 'a', uid };
    response.end(JSON.stringify({ metadata, spec: {}, status: { phase: 'Running' } }));
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  const kubeconfig = join(folder, 'kubeconfig');
  const document = {
    clusters: [{ name: 'a', cluster: { server: `http://127.0.0.1:${port}` } }],
    contexts: [{ name: 'a', context: { cluster: 'a', user: 'a' } }],
    users: [{ name: 'a', user: { token: 'a' } }],
  };
  await writeFile(kubeconfig, JSON.stringify(document));
  const { promise: listening, resolve } = Promise.withResolvers<string>();
  const ignored = () => undefined;
  const signal = AbortSignal.timeout(30_000);
  const ended = portForward(
    makeTerminal({ environment: { HOME: folder }, out: resolve, signal }),
    { kubeconfig, context: 'a', output: 'table' },
    { name: 'desk', pairs: [{ local: 0, remote: 22 }] },
  );
  const [, local] = /127\.0\.0\.1:(\d+)/.exec(await listening) ?? [];
  uid = 'second';
  const caller = connect(Number(local), '127.0.0.1').on('error', ignored);
  await expect(ended).rejects.toThrow('another VM has its name now');
  caller.destroy();
  server.closeAllConnections();
  server.close();
});

/** Time limit for the start of the viewer, which usually takes milliseconds. */
const START_MILLISECONDS = 20_000;

let vncFolder: string;

beforeEach(async () => {
  vncFolder = await mkdtemp(join(tmpdir(), 'berth-vnc-'));
  vi.stubEnv('PATH', `${vncFolder}${delimiter}${process.env['PATH']}`);
});

afterEach(async () => {
  vi.unstubAllEnvs();
  await rm(vncFolder, { recursive: true });
});

it('does not wait for the viewer after the user has ended the command', async () => {
  await writeFile(join(vncFolder, 'vncviewer'), `#!/bin/sh\necho $$ > ${vncFolder}/pid\nexec sleep 60\n`, {
    mode: 0o700,
  });
  const server = createServer((_request, response) => {
    response.setHeader('content-type', 'application/json');
    response.end(
      JSON.stringify({ metadata: { name: 'desk', uid: 'a' }, spec: {}, status: { phase: 'Running' } }),
    );
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const kubeconfig = join(vncFolder, 'kubeconfig');
  const document = {
    clusters: [
      { name: 'a', cluster: { server: `http://127.0.0.1:${(server.address() as AddressInfo).port}` } },
    ],
    contexts: [{ name: 'a', context: { cluster: 'a', user: 'a' } }],
    users: [{ name: 'a', user: { token: 'a' } }],
  };
  await writeFile(kubeconfig, JSON.stringify(document));
  const stop = new AbortController();
  const environment = { HOME: vncFolder, DISPLAY: ':0' };
  const ended = vnc(
    makeTerminal({ environment, signal: stop.signal }),
    { kubeconfig, context: 'a', output: 'table' },
    'desk',
  );
  const pid = async () => await readFile(join(vncFolder, 'pid'), 'utf8').catch(() => '');
  const viewer = Number(await vi.waitUntil(pid, { timeout: START_MILLISECONDS }));
  stop.abort();
  await ended;
  server.close();
  // A process that is in this list keeps the command running.
  const waitsFor = process.getActiveResourcesInfo();
  process.kill(viewer);
  expect(waitsFor).not.toContain('ProcessWrap');
});
