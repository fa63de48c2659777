import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { EXIT } from './errors.ts';
import { makeFolder } from '../test/support/folder.ts';
import { writeContext } from '../test/fixtures/kubeconfig.ts';

/** Runs the command. The stream is closed before the command writes to it. Returns the exit code. */
async function runWithout(stream: 'stdout' | 'stderr', ...args: string[]): Promise<unknown> {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'main.ts'), ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  child[stream].destroy();
  const [code] = (await once(child, 'exit')) as unknown[];
  return code;
}

it('fails with the code of its error although nobody reads the messages', async () => {
  expect(await runWithout('stderr', 'vm', 'lst')).toBe(EXIT.usage);
});

it('succeeds if the reader of the output needs no more of it', async () => {
  expect(await runWithout('stdout', '--help')).toBe(EXIT.done);
});

it.each([
  ['SIGINT', EXIT.interrupted, ['vm', 'list']],
  ['SIGTERM', EXIT.terminated, ['vm', 'run', '--image', 'a', '--identity', '/dev/null', '--', 'true']],
  ['SIGHUP', EXIT.hungUp, ['vm', 'run', '--image', 'a', '--identity', '/dev/null', '--', 'true']],
] as const)(
  'ends at once after %s with %i although a connection is not established yet: %j',
  async (signal, expected, call) => {
    const folder = makeFolder();
    // This server never answers the TLS handshake, so the attempt to connect lasts until its time limit.
    const server = createServer();
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const { port } = server.address() as AddressInfo;
    const kubeconfig = await writeContext(folder, `https://127.0.0.1:${port}`);
    const args = [
      join(import.meta.dirname, 'main.ts'),
      '--kubeconfig',
      kubeconfig,
      '--context',
      'a',
      ...call,
    ];
    const child = spawn(process.execPath, args, { stdio: 'ignore' });
    const [connection] = (await once(server, 'connection')) as [Socket];
    child.kill(signal);
    // The time limit is half of the time limit of the connection attempt.
    const [code] = (await once(child, 'exit', { signal: AbortSignal.timeout(5_000) })) as unknown[];
    expect(code).toBe(expected);
    connection.destroy();
    server.close();
  },
);
