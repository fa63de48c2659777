import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { type Running, runUntilSignal } from './program.ts';
import { makeFolder } from '../test/support/folder.ts';

const ROOT = join(import.meta.dirname, '..');
/** Rejects a promise when the program has installed its handler for rejections. */
const REJECTING = `process.on('newListener', (name) => {
  if (name === 'unhandledRejection') {
    queueMicrotask(() => Promise.reject(new Error('forgotten')));
  }
});`;

describe('runUntilSignal', () => {
  const logger = pino({ level: 'silent' });
  const SIGNALS = ['SIGTERM', 'SIGINT'] as const;
  const exit = vi.fn<(code: number) => never>();
  const before = new Set(SIGNALS.flatMap((signal) => process.listeners(signal)));

  beforeEach(() => void vi.spyOn(process, 'exit').mockImplementation(exit as typeof process.exit));

  afterEach(() => {
    vi.restoreAllMocks();
    exit.mockReset();
    for (const signal of SIGNALS) {
      const added = process.listeners(signal).filter((listener) => !before.has(listener));
      added.forEach((listener) => process.off(signal, listener));
    }
  });

  it.each(SIGNALS)(
    '%s ends a program that is still starting, although the kernel protects process 1',
    async (signal) => {
      const { promise: started, resolve } = Promise.withResolvers<Running>();
      const stop = vi.fn<() => Promise<void>>(async () => undefined);
      const run = runUntilSignal(logger, async () => await started);
      process.emit(signal);
      await expect.poll(() => exit.mock.calls).toEqual([[0]]);
      resolve({ stop });
      await run;
      expect(stop).not.toHaveBeenCalled();
    },
  );

  it.each(SIGNALS)('%s ends a program after its work', async (signal) => {
    const { promise: stopped, resolve } = Promise.withResolvers<void>();
    const stop = vi.fn<() => Promise<void>>(async () => await stopped);
    await runUntilSignal(logger, async () => ({ stop }));
    process.emit(signal);
    await expect.poll(() => stop).toHaveBeenCalledOnce();
    // A program that does not wait for its work would exit in this turn.
    await new Promise((proceed) => setImmediate(proceed));
    expect(exit).not.toHaveBeenCalled();
    resolve();
    await expect.poll(() => exit.mock.calls).toEqual([[0]]);
  });
});

describe('rejected promises', () => {
  let folder: string;
  let child: ChildProcessByStdio<null, Readable, Readable>;

  beforeEach(() => {
    folder = makeFolder();
  });

  afterEach(async () => {
    if (child.exitCode === null && child.signalCode === null) {
      const ended = once(child, 'close');
      child.kill('SIGKILL');
      await ended;
    }
  });

  async function run(name: string, script: string, ...args: readonly string[]): Promise<void> {
    const file = join(folder, name);
    await writeFile(file, script);
    child = spawn(process.execPath, [...args, file], { cwd: folder, stdio: ['ignore', 'pipe', 'pipe'] });
  }

  /** Returns the output of the program up to a text. @throws Error when the program ends before. */
  async function outputUntil(text: string): Promise<string> {
    let output = '';
    for await (const chunk of child.stdout.setEncoding('utf8') as AsyncIterable<string>) {
      output += chunk;
      if (output.includes(text)) {
        return output;
      }
    }
    throw new Error(`The program has ended and did not print ${text}: ${output}`);
  }

  describe('a program', () => {
    const BEGIN = `
    import { pino } from '${ROOT}/node_modules/pino/pino.js';
    import { createMetrics } from '${ROOT}/kube/metrics.ts';
    import { surviveRejections } from '${ROOT}/kube/program.ts';
    surviveRejections(pino());
    setInterval(() => undefined, 1_000);`;

    it('logs the error with its stack, counts it, and goes on', async () => {
      await run(
        'program.mts',
        `${BEGIN}
      const lose = async function handleConnection() { throw new Error('forgotten'); };
      lose();
      setImmediate(async () => console.log((await createMetrics().metrics()) + 'went on'));`,
      );
      const output = await outputUntil('went on');
      expect(output).toMatch(
        /"level":50,.*"message":"forgotten","stack":"Error: forgotten\\n +at handleConnection/,
      );
      expect(output).toContain('\nberth_unhandled_rejections_total 1\n');
    });

    it('still ends by an exception that nobody catches', async () => {
      await run('program.mts', `${BEGIN} setImmediate(() => { throw new Error('uncaught'); });`);
      expect(await once(child, 'close')).toEqual([1, null]);
    });
  });

  it.each([
    [
      'agent',
      'nodeName: x\ndataDirectory: data\nbootstrapKubeconfig: none\naddress: 192.0.2.1\nnetwork: {driver: user}\n',
    ],
    ['operator', '{}\n'],
  ])('the %s is such a program', async (program, config) => {
    await writeFile(join(folder, 'rejecting.mjs'), REJECTING);
    await run(
      'config.yaml',
      config,
      '--import',
      './rejecting.mjs',
      join(ROOT, program, 'main.ts'),
      '--config',
    );
    expect(await outputUntil('no code handled it')).toContain('"message":"forgotten"');
  });
});
