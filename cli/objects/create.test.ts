import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { afterEach, expect, it, vi } from 'vitest';
import { KubeClient } from '../../kube/client.ts';
import { Interrupted } from '../errors.ts';
import { VM_KIND } from '../vm/kind.ts';
import { createFromFile } from './create.ts';
import { makeTerminal } from '../../test/fixtures/terminals.ts';
import { makeFolder } from '../../test/support/folder.ts';
import { writeContext } from '../../test/fixtures/kubeconfig.ts';

afterEach(() => vi.restoreAllMocks());

it('is interrupted by a signal while it waits for the standard input', async () => {
  const input = new PassThrough();
  vi.spyOn(process, 'stdin', 'get').mockReturnValue(input as unknown as typeof process.stdin);
  const interrupt = new AbortController();
  const created = createFromFile(
    makeTerminal({ isForPeople: true, signal: interrupt.signal }),
    { output: 'table' },
    VM_KIND,
    '-',
  );
  input.write('apiVersion: berth.dev/v1alpha1\n');
  interrupt.abort(new Interrupted());
  await expect(created).rejects.toThrow(Interrupted);
  expect(input.destroyed).toBe(true);
});

it('creates objects without a namespace, or with an empty one, in the namespace of the command', async () => {
  const folder = makeFolder();
  const kubeconfig = await writeContext(folder, 'http://127.0.0.1', { namespace: 'team', token: 'a' });
  const file = join(folder, 'vms.yaml');
  const { apiVersion, kind } = VM_KIND.type;
  const documents = [
    { name: 'one' },
    { name: 'two', namespace: '' },
    { name: 'three', namespace: 'own' },
  ].map((metadata) => JSON.stringify({ apiVersion, kind, metadata, spec: { image: 'linux' } }));
  await writeFile(file, documents.join('\n---\n'));
  const create = vi.spyOn(KubeClient.prototype, 'create').mockImplementation(async (_type, object) => {
    return { spec: {}, ...object } as never;
  });
  const globals = { kubeconfig, context: 'a', output: 'table' } as const;
  await createFromFile(makeTerminal(), globals, VM_KIND, file);
  const made = create.mock.calls.map(([, { metadata }]) => metadata).filter(({ name }) => name !== undefined);
  expect(made.map(({ namespace }) => namespace)).toEqual(['team', 'team', 'own']);
});
