import { Duplex, PassThrough, Readable } from 'node:stream';
import { once } from 'node:events';
import { setImmediate as immediate } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { attach, execute, type StreamTarget } from './exec.ts';
import { ClientGoneError, type CommandSession, type StreamStatus } from './session.ts';

it('a command whose caller never ends the input ends with the session', async () => {
  const lose = new AbortController();
  const statuses: StreamStatus[] = [];
  const executed = execute(
    {
      stdin: new PassThrough(),
      stdout: undefined,
      stderr: undefined,
      signal: lose.signal,
      ended: Promise.resolve(),
      finish: async (status) => void statuses.push(status),
    },
    {} as StreamTarget,
    ['cat'],
    () => true,
  );
  lose.abort(new Error('The stream was idle for 30 minutes'));
  await executed;
  expect(statuses).toMatchObject([{ status: 'Failure', message: 'The stream was idle for 30 minutes' }]);
});

it('the input is copied, so that no small piece keeps a large chunk', async () => {
  const inputs: unknown[] = [];
  const target = {
    execute: async ({ input }: { input?: Buffer }) => {
      inputs.push(String(input));
      return { exitCode: 0, stdout: [], stderr: [], truncated: false };
    },
  };
  const session = {
    stdin: Readable.from(overwritten('piece by piece'), { objectMode: false, highWaterMark: 1 }),
    stdout: undefined,
    stderr: undefined,
    signal: new AbortController().signal,
    ended: Promise.resolve(),
    finish: async () => undefined,
  };
  await execute(session, target as unknown as StreamTarget, ['cat'], () => true);
  expect(inputs).toEqual(['piece by piece']);
});

it('input for which no memory is left is refused before the command runs', async () => {
  const statuses: StreamStatus[] = [];
  let left = 10;
  const reserve = (bytes: number): boolean => (left -= bytes) >= 0;
  const session = {
    stdin: Readable.from(overwritten('more than ten bytes'), { objectMode: false, highWaterMark: 1 }),
    stdout: undefined,
    stderr: undefined,
    signal: new AbortController().signal,
    ended: Promise.resolve(),
    finish: async (status: StreamStatus) => void statuses.push(status),
  };
  await execute(session, {} as StreamTarget, ['cat'], reserve);
  expect(statuses).toMatchObject([
    { message: expect.stringContaining('Other commands of this namespace') as string },
  ]);
});

/** Returns the bytes of the text one by one. All pieces use the same memory. */
function* overwritten(text: string): Generator<Buffer> {
  const chunk = Buffer.alloc(1);
  for (const byte of Buffer.from(text)) {
    chunk[0] = byte;
    yield chunk;
  }
}

/** A console whose guest prints `shown`. It records the input that was typed. */
class Console extends Duplex {
  typed = '';

  override _read(): void {
    // The test prints by push().
  }

  override _write(chunk: Buffer, _: BufferEncoding, done: () => void): void {
    this.typed += chunk.toString();
    this.emit('typed');
    done();
  }
}

interface Caller extends CommandSession {
  stdin: PassThrough;
  stdout: PassThrough;
  lose: AbortController;
  result: Promise<StreamStatus>;
}

function caller(): Caller {
  const lose = new AbortController();
  const { promise, resolve } = Promise.withResolvers<StreamStatus>();
  return {
    stdin: new PassThrough(),
    stdout: new PassThrough(),
    stderr: undefined,
    signal: lose.signal,
    ended: Promise.resolve(),
    finish: async (status) => resolve(status),
    lose,
    result: promise,
  };
}

describe('attach', () => {
  it('leaves at Ctrl+] of a terminal, and the guest gets the keys before it', async () => {
    const [console, one] = [new Console(), caller()];
    const attached = attach(one, console, { name: 'desk', tty: true });
    expect(String(await once(one.stdout, 'data'))).toContain('Press Ctrl+] to leave');
    one.stdin.write('ls\u001dnever');
    await attached;
    expect(console.typed).toBe('ls');
    expect(await one.result).toMatchObject({ status: 'Success' });
    expect(console.destroyed).toBe(true);
  });

  it('passes Ctrl+] on without a terminal, and reads on after the end of the input', async () => {
    const [console, one] = [new Console(), caller()];
    const attached = attach(one, console, { name: 'desk', tty: false });
    const typed = once(console, 'typed');
    one.stdin.end('a\u001db');
    await typed;
    expect(console.typed).toBe('a\u001db');
    await expect.poll(() => console.writableEnded, { message: 'others may type' }).toBe(true);
    console.push('printed later');
    expect(String(await once(one.stdout, 'data'))).toBe('printed later');
    console.push(null);
    await attached;
    expect(await one.result).toMatchObject({ status: 'Success' });
  });

  it('reads on when the client breaks off its input, which leaves no error that would end the agent', async () => {
    const [console, one] = [new Console(), caller()];
    const unhandled: unknown[] = [];
    const note = (error: unknown): void => void unhandled.push(error);
    process.on('unhandledRejection', note);
    try {
      const attached = attach(one, console, { name: 'desk', tty: false });
      const closed = new Promise((resolve) => one.stdin.once('close', resolve));
      one.stdin.destroy(new ClientGoneError());
      await closed;
      // Node.js reports an error without a handler before the next turn of its event loop.
      await immediate();
      expect(console.writableEnded, 'others may type').toBe(true);
      console.push('printed later');
      expect(String(await once(one.stdout, 'data'))).toBe('printed later');
      console.push(null);
      await attached;
    } finally {
      process.off('unhandledRejection', note);
    }
    expect(unhandled).toEqual([]);
    expect(await one.result).toMatchObject({ status: 'Success' });
  });

  it('tells the caller why the console cut the caller off', async () => {
    const [console, one] = [new Console(), caller()];
    const attached = attach(one, console, { name: 'desk', tty: false });
    console.destroy(new Error('The reader is too slow'));
    await attached;
    expect(await one.result).toMatchObject({ status: 'Failure', message: 'The reader is too slow' });
  });

  it('leaves the console when the session is over', async () => {
    const [console, one] = [new Console(), caller()];
    const attached = attach(one, console, { name: 'desk', tty: false });
    one.lose.abort(new Error('The stream was idle for 30 minutes'));
    await attached;
    expect(console.destroyed).toBe(true);
    expect(await one.result).toMatchObject({
      status: 'Failure',
      message: 'The stream was idle for 30 minutes',
    });
  });
});
