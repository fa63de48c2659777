import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { EXIT, Interrupted } from '../errors.ts';
import { VM_KIND } from '../vm/kind.ts';
import { watchList } from './verbs.ts';
import { makeTerminal } from '../../test/fixtures/terminals.ts';
import { makeFolder } from '../../test/support/folder.ts';
import { writeContext } from '../../test/fixtures/kubeconfig.ts';

const MAC = { metadata: { name: 'mac', namespace: 'a', uid: '1', resourceVersion: '1' }, spec: {} };

let folder: string;
let server: Server;

beforeEach(async () => {
  folder = makeFolder();
  // The namespace has one VM with the name `mac`. It changes once.
  server = createServer(({ url = '' }, response) => {
    const { pathname, searchParams } = new URL(url, 'http://api');
    response.setHeader('content-type', 'application/json');
    if (searchParams.has('watch')) {
      response.write(
        `${JSON.stringify({ type: 'MODIFIED', object: { ...MAC, status: { phase: 'Running' } } })}\n`,
      );
    } else if (pathname.endsWith('/vms')) {
      response.end(JSON.stringify({ items: [MAC], metadata: { resourceVersion: '1' } }));
    } else {
      const name = pathname.split('/').at(-1);
      const message = `vms.berth.dev "${name}" not found`;
      response.statusCode = 404;
      response.end(JSON.stringify({ kind: 'Status', message, reason: 'NotFound', code: 404 }));
    }
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
});

afterEach(async () => {
  server.closeAllConnections();
  server.close();
});

/** Watches the VMs until the command has written twice: the list, and one change. Returns its output. */
async function watched(...names: string[]): Promise<string[]> {
  const { port } = server.address() as AddressInfo;
  const kubeconfig = await writeContext(folder, `http://127.0.0.1:${port}`, { namespace: 'a' });
  const interrupt = new AbortController();
  const written: string[] = [];
  const out = (text: string) => {
    if (written.push(text) === 2) {
      interrupt.abort(new Interrupted());
    }
  };
  const terminal = makeTerminal({ environment: { HOME: folder }, out, err: out, signal: interrupt.signal });
  try {
    await watchList(terminal, { kubeconfig, context: 'a', output: 'name' }, VM_KIND, { names });
  } catch (error) {
    if (!(error instanceof Interrupted)) {
      throw error;
    }
  }
  return written;
}

it('shows the named objects, and then their changes', async () => {
  expect(await watched('mac')).toEqual(['mac\n', 'mac\n']);
});

it('fails at once if a named object does not exist', async () => {
  const error = { exitCode: EXIT.notFound, message: 'vm "mak" not found in namespace a. Did you mean mac?' };
  await expect(watched('mac', 'mak')).rejects.toMatchObject(error);
  await expect(watched('a/b')).rejects.toMatchObject({ exitCode: EXIT.notFound });
});
