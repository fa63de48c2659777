import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it, vi } from 'vitest';
import { makeFolder } from '../../test/support/folder.ts';
import { GuestShell } from './guestshell.ts';

/** Longer than a guest may refuse the key. */
const STEP_MILLISECONDS = 31_000;

it.each([
  ['/keys/ci', /: .*Permission denied.*SSH_AUTH_SOCK must name the agent$/],
  [undefined, /: root@vm: Permission denied \(publickey\)\.$/],
])('a refusal of the key %s says what its ssh does not read', async (identity, message) => {
  const folder = makeFolder();
  const script = '#!/bin/sh\necho "root@vm: Permission denied (publickey)." >&2\nexit 255\n';
  await writeFile(join(folder, 'ssh'), script, { mode: 0o755 });
  vi.stubEnv('PATH', `${folder}:${process.env['PATH']}`);
  let now = 0;
  vi.spyOn(performance, 'now').mockImplementation(() => (now += STEP_MILLISECONDS));
  const login = { name: 'vm', user: 'root', options: [], folder, identity };
  const { signal } = new AbortController();
  await expect(GuestShell.open(login, { signal, minutes: 1 })).rejects.toMatchObject({
    exitCode: 204,
    message: expect.stringMatching(message),
  });
});
