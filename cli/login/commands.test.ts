import { existsSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { Readable } from 'node:stream';
import { setImmediate as nextCycle } from 'node:timers/promises';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Interrupted } from '../errors.ts';
import { logout, setToken } from './commands.ts';
import { sessionFile, withSessionLock } from './session.ts';
import { makeTerminal } from '../../test/fixtures/terminals.ts';
import { makeFolder } from '../../test/support/folder.ts';

let folder: string;
let kubeconfig: string;

beforeEach(() => {
  folder = makeFolder();
  kubeconfig = join(folder, 'kubeconfig');
});

afterEach(async () => {
  vi.restoreAllMocks();
});

function terminal(out: (text: string) => void = () => undefined, { signal } = new AbortController()) {
  return makeTerminal({ environment: { HOME: folder }, out, signal });
}

const flags = { server: 'https://cluster.example' };

async function store(token: string, input: Readable, interrupt?: AbortController): Promise<void> {
  vi.spyOn(process, 'stdin', 'get').mockReturnValue(input as unknown as typeof process.stdin);
  await setToken(terminal(undefined, interrupt), { kubeconfig, output: 'table' }, { token, flags });
}

it('stores a token of the standard input, which is in no argument', async () => {
  await store('-', Readable.from(['Bearer abc.def\nrest\n']));
  expect(await readFile(kubeconfig, 'utf8')).toContain('token: abc.def\n');
  await expect(store('-', Readable.from(['\n']))).rejects.toThrow('The token must have from 1 to');
});

it('stores a token that is longer than a password may be, and refuses one that no API server takes', async () => {
  const longest = 'a'.repeat(128 * 1024);
  await store('-', Readable.from([`${longest}\n`]));
  expect(await readFile(kubeconfig, 'utf8')).toContain(`token: ${longest}\n`);
  await expect(store('-', Readable.from([`${longest}a\n`]))).rejects.toThrow('from 1 to 131072 characters');
});

it('writes only JSON in this format, and so does the sign-out', async () => {
  const texts: string[] = [];
  const globals = { kubeconfig, output: 'json' } as const;
  await setToken(
    terminal((text) => void texts.push(text)),
    globals,
    { token: 'abc.def', flags },
  );
  await logout(
    terminal((text) => void texts.push(text)),
    globals,
  );
  const shown = { name: 'berth', kubeconfig };
  expect(texts.map((text) => JSON.parse(text) as unknown)).toEqual([
    [{ ...shown, server: flags.server }],
    [shown],
  ]);
});

it('is interrupted while it waits for the token', async () => {
  const interrupt = new AbortController();
  const stored = store('-', new Readable({ read: () => undefined }), interrupt);
  interrupt.abort(new Interrupted());
  await expect(stored).rejects.toThrow(Interrupted);
});

it('lets a renewal of the earlier session end first, because the renewal would write this session again', async () => {
  const environment = { HOME: folder };
  const session = sessionFile({ environment }, { file: kubeconfig, context: 'berth' });
  await mkdir(dirname(session), { recursive: true });
  await writeFile(session, '{}');
  const { promise: renewed, resolve: renew } = Promise.withResolvers<void>();
  const renewal = withSessionLock(session, new AbortController().signal, async () => await renewed);
  const stored = store('abc.def', Readable.from([]));
  await expect.poll(() => existsSync(kubeconfig)).toBe(true);
  await expect.poll(() => existsSync(`${kubeconfig}.lock`)).toBe(false);
  for (let rounds = 0; rounds < 1_000; rounds += 1) {
    await nextCycle();
  }
  await writeFile(session, '{}');
  renew();
  await Promise.all([renewal, stored]);
  expect(existsSync(session)).toBe(false);
});
