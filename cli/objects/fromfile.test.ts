import { PassThrough } from 'node:stream';
import { afterEach, expect, it, vi } from 'vitest';
import { Interrupted } from '../errors.ts';
import { VM_KIND } from '../vm/kind.ts';
import { createFromFile } from './fromfile.ts';

afterEach(() => vi.restoreAllMocks());

it('is interrupted by a signal while it waits for the standard input', async () => {
  const input = new PassThrough();
  vi.spyOn(process, 'stdin', 'get').mockReturnValue(input as unknown as typeof process.stdin);
  const interrupt = new AbortController();
  const ignored = () => undefined;
  const terminal = { name: 'berth', environment: {}, out: ignored, err: ignored, isForPeople: true };
  const created = createFromFile(
    { ...terminal, signal: interrupt.signal },
    { output: 'table' },
    VM_KIND,
    '-',
  );
  input.write('apiVersion: berth.dev/v1alpha1\n');
  interrupt.abort(new Interrupted());
  await expect(created).rejects.toThrow(Interrupted);
  expect(input.destroyed).toBe(true);
});
