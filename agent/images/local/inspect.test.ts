import { execFileSync } from 'node:child_process';
import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as immediate } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { formatOf, inspectImage } from './inspect.ts';

/** Time limit of `qemu-img info`, which is not configurable. */
const LIMIT_MILLISECONDS = 60_000;
/** Limit of its CPU time, in seconds. */
const CPU_SECONDS = 10;

describe('a qcow2 file, when qemu-img', () => {
  let folder: string;
  let path: string;

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-inspect-'));
    path = join(folder, 'disk.qcow2');
    execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', path, '1M']);
    const bin = join(folder, 'bin');
    await mkdir(bin);
    // On Linux, prlimit runs qemu-img with limits.
    if (process.platform === 'linux') {
      await symlink(execFileSync('sh', ['-c', 'command -v prlimit']).toString().trim(), join(bin, 'prlimit'));
    }
    vi.stubEnv('PATH', bin);
  });

  afterEach(async () => {
    vi.unstubAllEnvs();
    vi.useRealTimers();
    await rm(folder, { recursive: true });
  });

  /** Replaces qemu-img by a script. */
  async function replace(script: string): Promise<void> {
    const program = join(folder, 'bin', 'qemu-img');
    await writeFile(program, `#!/bin/sh\n${script}\n`);
    await chmod(program, 0o755);
  }

  it('is not installed, is not called invalid', async () => {
    await expect(inspectImage(path)).rejects.toMatchObject({ name: 'ProgramError' });
  });

  it('cannot be started, is not called invalid', async () => {
    await rm(join(folder, 'bin', 'prlimit'), { force: true });
    await expect(inspectImage(path)).rejects.toMatchObject({ name: 'ProgramError', code: 'ENOENT' });
  });

  it('is killed, is not called invalid', async () => {
    await replace('kill -9 $$');
    await expect(inspectImage(path)).rejects.toThrow('qemu-img info ended with SIGKILL');
  });

  it.each([
    ['refuses it', 'echo bad table >&2; exit 1', 'bad table'],
    ['crashes', 'kill -SEGV $$', 'ended with SIGSEGV'],
    ['writes without end', 'while echo endless; do :; done', 'wrote more than 1048576 bytes'],
  ])('%s, is ImageInvalid', async (_, script, words) => {
    await replace(script);
    const message = expect.stringContaining(words) as string;
    await expect(inspectImage(path)).rejects.toMatchObject({ reason: 'ImageInvalid', message });
  });

  it('needs too much CPU time, is ImageInvalid', async ({ skip }) => {
    skip(process.platform !== 'linux', 'only Linux has prlimit');
    await replace(`test "$(ulimit -t)" = ${CPU_SECONDS} && kill -XCPU $$`);
    const message = expect.stringContaining('ended with SIGXCPU') as string;
    await expect(inspectImage(path)).rejects.toMatchObject({ reason: 'ImageInvalid', message });
  });

  it('waits without end, is not called invalid', async () => {
    await replace('exec /bin/sleep 600');
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const inspected = inspectImage(path);
    inspected.catch(() => undefined);
    while (vi.getTimerCount() === 0) {
      await immediate();
    }
    vi.advanceTimersByTime(LIMIT_MILLISECONDS);
    await expect(inspected).rejects.toMatchObject({ name: 'ProgramError', exceeded: 'time' });
  });
});

it('content of the image storage has the format in which the agent stores it, and other files have the stated format', () => {
  const artifact = { type: 'storedArtifact', reference: 'registry.example/berth/a:1' } as const;
  const file = { type: 'storedFile', path: 'team/a.qcow2', sha256: '0' } as const;
  const shared = { type: 'sharedFile', path: 'a' } as const;
  expect([artifact, file, shared].map((source) => formatOf(source, 'QCOW2'))).toEqual([
    'Raw',
    'QCOW2',
    'QCOW2',
  ]);
  expect([artifact, file, shared].map((source) => formatOf(source, 'Raw'))).toEqual(['Raw', 'QCOW2', 'Raw']);
  expect(formatOf(shared)).toBe('Auto');
});

it('a qcow2 file with an empty disk is ImageInvalid, like an empty raw file', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-inspect-'));
  onTestFinished(async () => await rm(folder, { recursive: true }));
  const path = join(folder, 'disk.qcow2');
  execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', path, '0']);
  const message = expect.stringContaining('size of 0 bytes') as string;
  await expect(inspectImage(path)).rejects.toMatchObject({ reason: 'ImageInvalid', message });
  await writeFile(path, '');
  await expect(inspectImage(path)).rejects.toMatchObject({ reason: 'ImageInvalid', message });
});
