import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { open, readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import {
  forgetLastOutput,
  listSegments,
  type LogName,
  logsWritten,
  type PrintedSecret,
  SEGMENT_BYTES,
  withLogWriter,
} from './logwriter.ts';
import { connectTerminal, makeTerminal } from './terminal.ts';
import { makeFolder } from '../../test/support/folder.ts';

const MEBIBYTE = 1024 * 1024;
/** Limit of a wait. The default, 1 s, is too short on a busy machine. */
const WAIT = { timeout: 30_000 };

describe('the log writer', () => {
  let folder: string;

  beforeEach(async () => {
    folder = makeFolder();
    await makeTerminal(folder);
  });

  /** Runs a shell script in place of the hypervisor until its end, and returns its exit code. */
  async function run(script: string, ...options: [LogName?, PrintedSecret?]): Promise<number | null> {
    await forgetLastOutput(folder);
    const [program, ...parameters] = withLogWriter(['/bin/sh', '-c', script, 'the-machine'], ...options);
    const log = await open(join(folder, 'hypervisor.0.log'), 'a', 0o600);
    const child = spawn(program, parameters, {
      cwd: folder,
      stdio: ['pipe', log.fd, log.fd],
    });
    const exit = once(child, 'exit') as Promise<[number | null]>;
    child.stdin?.end('\n');
    const [code] = await exit;
    await log.close();
    await logsWritten(folder);
    return code;
  }

  async function kept(log: LogName): Promise<string> {
    const pieces = listSegments(folder, log).map(async ({ path }) => await readFile(path, 'latin1'));
    return (await Promise.all(pieces)).join('');
  }

  function connected(isRunning: () => Promise<boolean>): Duplex {
    const terminal = connectTerminal(folder, isRunning);
    if (terminal === undefined) {
      throw new Error('no process has the input open');
    }
    return terminal;
  }

  it('keeps the output of console and hypervisor in separate files', async () => {
    expect(await run('echo booting; echo warning >&2; echo error >&2; exit 7')).toBe(7);
    expect(await kept('serial')).toBe('booting\n');
    expect(await kept('hypervisor')).toBe('warning\nerror\n');
    expect(await readdir(folder)).toEqual(['hypervisor.0.log', 'serial.0.log', 'serial.in']);
  });

  it('keeps the newest output of both in files of bounded size, with positions that show the missing part', async () => {
    const flood = 'yes 0123456789 | head -c 60m';
    expect(await run(`${flood}; ${flood} >&2; echo ending; echo failing >&2`)).toBe(0);
    for (const [log, end] of [
      ['serial', 'ending\n'],
      ['hypervisor', 'failing\n'],
    ] as const) {
      const [before, last] = listSegments(folder, log);
      const sizes = await Promise.all(listSegments(folder, log).map(async ({ path }) => await stat(path)));
      expect(sizes.map(({ size }) => size <= SEGMENT_BYTES)).toEqual([true, true]);
      expect(last?.start).toBe((before?.start ?? 0) + (sizes[0]?.size ?? 0));
      expect((last?.start ?? 0) + (sizes[1]?.size ?? 0)).toBe(60 * MEBIBYTE + end.length);
      const text = await kept(log);
      expect(text.length).toBeGreaterThan(SEGMENT_BYTES);
      expect(text.endsWith(end)).toBe(true);
    }
  });

  it('leaves the input to others, and writes later output', async () => {
    const ended = run('echo before; read -r one; echo "$one, $one"; read -r two; echo "$two, $two"');
    await vi.waitFor(async () => expect(await kept('serial')).toBe('before\n'), WAIT);
    let isRunning = true;
    const [one, other] = [connected(async () => isRunning), connected(async () => true)];
    let seen = '';
    one.on('data', (chunk: Buffer) => {
      seen += chunk.toString();
    });
    const closed = once(one, 'close');
    one.write('typed\n');
    await vi.waitFor(() => expect(seen).toBe('typed, typed\n'), WAIT);
    other.write('again\n');
    expect(await ended).toBe(0);
    isRunning = false;
    await closed;
    expect(seen).toBe('typed, typed\nagain, again\n');
    other.destroy();
    expect(connectTerminal(folder, async () => true)).toBeUndefined();
  });

  it('keeps a printed secret in a file of its own, also if it comes in pieces, and never in a log', async () => {
    const secret = { pattern: String.raw`vnc://\S+`, file: 'screen.secret' };
    const pieces = 'printf "at vn"; sleep 0.05; printf "c://:pass-"; sleep 0.05; echo "word@host ok"';
    await run(
      `echo before; ${pieces}; yes long | head -c 9000 | tr -d "\n"; echo after >&2`,
      'serial',
      secret,
    );
    const text = await kept('serial');
    expect(text).toMatch(/^before\nat \(hidden\) ok\n/);
    expect(text).toHaveLength('before\nat (hidden) ok\n'.length + 7200 + 'after\n'.length);
    expect(await readFile(join(folder, secret.file), 'latin1')).toBe('vnc://:pass-word@host');
    expect((await stat(join(folder, secret.file))).mode & 0o777).toBe(0o600);
    expect(await readdir(folder)).toEqual(['hypervisor.0.log', 'screen.secret', 'serial.0.log', 'serial.in']);
  });

  it('continues the console at the next start, and begins the last words again', async () => {
    await run('head -c 5m /dev/zero; echo one; echo first >&2');
    await run('echo two; echo second >&2');
    expect((await kept('serial')).endsWith('\0one\ntwo\n')).toBe(true);
    expect(listSegments(folder, 'serial').map(({ start }) => start)).toHaveLength(2);
    expect(await kept('hypervisor')).toBe('second\n');
  });

  it('is not mistaken for the machine, and its death neither stops nor ends the machine', async () => {
    const killed = [
      'for file in /proc/[0-9]*/status; do',
      '  if grep -qs "^PPid:\t$$$" "$file"; then pid=${file#/proc/}; pid=${pid%/status}; fi',
      '  if [ "$pid" ] && grep -qs the-machine "/proc/$pid/cmdline"; then pid=; fi',
      '  if [ "$pid" ]; then break; fi',
      'done',
      'trap "" PIPE; kill -9 "$pid"; while [ -e "/proc/$pid/fd/0" ]; do :; done',
      'head -c 1m /dev/zero 2> /dev/null; echo lost >&2; exit 5',
    ].join('\n');
    expect(await run(killed)).toBe(5);
    expect(await kept('serial')).toBe('');
  });

  it('keeps the reason why the command cannot be executed', async () => {
    const [program, ...parameters] = withLogWriter(['/no/such/hypervisor']);
    const log = await open(join(folder, 'hypervisor.0.log'), 'a', 0o600);
    const child = spawn(program, parameters, { cwd: folder, stdio: ['pipe', log.fd, log.fd] });
    child.stdin?.end('\n');
    await once(child, 'exit');
    await log.close();
    await logsWritten(folder);
    expect(await kept('hypervisor')).toBe('/no/such/hypervisor: No such file or directory\n');
  });

  it('does not begin before the start signal', async () => {
    const [program, ...parameters] = withLogWriter(['/bin/sh', '-c', 'echo begun']);
    const child = spawn(program, parameters, { cwd: folder, stdio: ['pipe', 'ignore', 'ignore'] });
    // With the closed input, the process sees the same as if the agent had died before it moved the process into its control group.
    child.stdin?.destroy();
    expect((await once(child, 'exit'))[0]).toBe(1);
    expect(await readdir(folder)).toEqual(['serial.in']);
  });
});
