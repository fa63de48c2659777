import { join } from 'node:path';
import { type Duplex, duplexPair } from 'node:stream';
import { describe, expect, it, vi } from 'vitest';
import { run } from '../../../base/exec.ts';
import { ConsoleClient, ConsoleError, killByConsole } from './console.ts';

const GREETING = [
  'Android Console: Authentication required',
  "Android Console: type 'auth <auth_token>' to authenticate",
  'Android Console: you can find your <auth_token> in ',
  "'/run/berth-machine/home/.emulator_console_auth_token'",
  'OK',
  '',
].join('\r\n');

/** A console that greets and answers each line by `answer`. Undefined means no answer. */
function peer(
  answer: (line: string) => string | undefined,
  greeting = GREETING,
): { client: Duplex; lines: string[] } {
  const [client, server] = duplexPair();
  const lines: string[] = [];
  server.on('error', () => undefined);
  server.write(greeting);
  server.on('data', (chunk: Buffer) => {
    for (const line of String(chunk).trimEnd().split('\n')) {
      lines.push(line);
      const text = answer(line);
      if (text !== undefined) {
        server.write(`${text}\r\n`);
      }
    }
  });
  return { client, lines };
}

describe('the console of an emulator', () => {
  it('gets the token, then the command', async () => {
    const { client, lines } = peer((line) =>
      line === 'kill' ? 'OK: killing emulator, bye bye' : 'Welcome\r\nOK',
    );
    await killByConsole(client, 'secret');
    expect(lines).toEqual(['auth secret', 'kill']);
    expect(client.destroyed).toBe(true);
  });

  it('gets no command if it refuses the token', async () => {
    const { client, lines } = peer(() => 'KO: token \u001b[31mdoes not match');
    await expect(killByConsole(client, 'wrong')).rejects.toThrow(
      'refused the command: KO: token ?[31mdoes not match',
    );
    expect(lines).toEqual(['auth wrong']);
    expect(client.destroyed).toBe(true);
  });

  it.each([
    ['closes the connection', (server: Duplex) => server.end(), 'closed the connection'],
    ['sends a line without end', (server: Duplex) => server.write('x'.repeat(8_192)), 'longer than'],
    [
      'sends lines without end',
      (server: Duplex) => {
        for (let sent = 0; sent < 100; sent += 1) {
          server.write(`${'x'.repeat(1_000)}\n`);
        }
      },
      'more than 65536 bytes',
    ],
  ])('that %s is given up', async (_, act, expected) => {
    const [client, server] = duplexPair();
    server.on('error', () => undefined);
    act(server);
    server.resume();
    await expect(killByConsole(client, 'secret')).rejects.toThrow(expected);
  });

  it('that cannot be reached because the agent has too many open files does not end the agent', async () => {
    const program = `
      import { openSync } from 'node:fs';
      import { connectInside } from ${JSON.stringify(join(import.meta.dirname, 'console.ts'))};
      try { for (;;) openSync('/dev/null'); } catch {}
      try { connectInside('/none', 1).on('error', () => undefined); } catch {}
      await new Promise((resolve) => setImmediate(resolve));
      process.stdout.write('goes on');
      process.exit();`;
    const command = ['-c', 'ulimit -n 256 && exec "$@"', 'sh', process.execPath, '--input-type=module', '-e'];
    expect(await run('sh', [...command, program], { timeoutMilliseconds: 30_000 })).toBe('goes on');
  });

  it('that says nothing is given up after a time', async () => {
    vi.useFakeTimers();
    try {
      const [client] = duplexPair();
      const console = new ConsoleClient(client);
      const [answer] = await Promise.allSettled([console.greeted(5_000), vi.advanceTimersByTimeAsync(5_000)]);
      expect(answer).toMatchObject({ reason: new ConsoleError('The console did not answer within 5000 ms') });
      console.close();
    } finally {
      vi.useRealTimers();
    }
  });
});
