import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { HostPlatforms } from './platform.ts';

const HOUR_MILLISECONDS = 3_600_000;

let directory: string;
let platforms: HostPlatforms;

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'berth-platforms-'));
  mkdirSync(join(directory, 'bin'));
  vi.stubEnv('PATH', join(directory, 'bin'));
  writeFileSync(tried(), '');
  install('7.2');
  allow(['kvm', 'tcg']);
  platforms = agent();
});

afterEach(() => {
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
  rmSync(directory, { recursive: true });
});

function agent(): HostPlatforms {
  return new HostPlatforms({ dataDirectory: join(directory, 'data'), logger: pino({ level: 'silent' }) });
}

function binary(): string {
  return join(directory, 'bin', 'qemu-system-x86_64');
}

function tried(): string {
  return join(directory, 'tried');
}

/** Installs a program in place of QEMU. It notes each accelerator with which it is tried, and uses only commands of the shell itself. */
function install(version: string): void {
  const script = `#!/bin/sh
case "$*" in
  '-machine help') echo 'pc-q35-${version} Standard PC' ;;
  -version) echo 'QEMU emulator version ${version}.0' ;;
  *' help') echo none ;;
  *accel=kvm*) echo kvm >> '${tried()}'; [ -e '${directory}/kvm' ] && exit 33; exit 1 ;;
  *accel=tcg*) echo tcg >> '${tried()}'; [ -e '${directory}/tcg' ] && exit 33; exit 1 ;;
esac
`;
  writeFileSync(binary(), script);
  chmodSync(binary(), 0o755);
}

/** Lets only these accelerators work. */
function allow(working: readonly ('kvm' | 'tcg')[]): void {
  for (const name of ['kvm', 'tcg'] as const) {
    rmSync(join(directory, name), { force: true });
  }
  for (const name of working) {
    writeFileSync(join(directory, name), '');
  }
}

/** Returns the accelerators that were tried since the last call. */
function trials(): string[] {
  const names = readFileSync(tried(), 'utf8').split('\n').filter(Boolean);
  writeFileSync(tried(), '');
  return names;
}

async function accelerator(host = platforms): Promise<string> {
  return (await host.of('amd64')).accelerator;
}

describe('the platforms of a host', () => {
  beforeEach((context) => {
    context.skip(process.platform !== 'linux' || process.arch !== 'x64', 'The trials are for Linux on amd64');
  });

  it('are tried once by requests at the same time, later requests and later agents', async () => {
    expect(await Promise.all([accelerator(), accelerator()])).toEqual(['kvm', 'kvm']);
    expect(await accelerator()).toBe('kvm');
    vi.spyOn(Date, 'now').mockReturnValue(Date.now() + HOUR_MILLISECONDS);
    expect(await accelerator(agent())).toBe('kvm');
    expect(trials()).toEqual(['kvm']);
  });

  it('are tried again when QEMU is upgraded, without a restart of the agent', async () => {
    expect(await platforms.of('amd64')).toMatchObject({ machineType: 'pc-q35-7.2' });
    install('10.0');
    expect(await platforms.of('amd64')).toMatchObject({
      machineType: 'pc-q35-10.0',
      display: { vncMaximum: { width: 5120 } },
    });
    expect(trials()).toEqual(['kvm', 'kvm']);
  });

  it.each([
    ['9.0', false],
    ['9.1', true],
    ['10.0', true],
  ])(
    'tell how QEMU changes its user, because QEMU 10.0 has no option -runas: %s',
    async (version, runWith) => {
      install(version);
      expect(await platforms.of('amd64')).toMatchObject({ runWith });
    },
  );

  it('are tried again when the rights of a file or the groups of the agent change', async () => {
    allow(['tcg']);
    expect(await accelerator()).toBe('tcg');
    allow(['kvm', 'tcg']);
    chmodSync(binary(), 0o750);
    expect(await accelerator()).toBe('kvm');
    allow(['tcg']);
    vi.spyOn(process, 'getgroups').mockReturnValue([1, 2, 3]);
    expect(await accelerator()).toBe('tcg');
  });

  it('are tried again by an agent that starts an hour after an accelerator was refused', async () => {
    allow(['tcg']);
    expect(await accelerator()).toBe('tcg');
    allow(['kvm', 'tcg']);
    const now = Date.now();
    const clock = vi.spyOn(Date, 'now').mockReturnValue(now + HOUR_MILLISECONDS / 2);
    expect(await accelerator(agent())).toBe('tcg');
    clock.mockReturnValue(now + HOUR_MILLISECONDS);
    expect(await accelerator()).toBe('tcg');
    expect(trials()).toEqual(['kvm', 'tcg']);
    expect(await accelerator(agent())).toBe('kvm');
  });

  it('are tried at each request while nothing works', async () => {
    allow([]);
    await expect(accelerator()).rejects.toThrow('This host cannot run amd64 guests with QEMU');
    allow(['kvm']);
    expect(await accelerator()).toBe('kvm');
  });
});
