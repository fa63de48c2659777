/**
 * A host with the driver tart, and the stand-in for the program `tart` in place of the real one. Its machines sleep, or are guests in QEMU. No test
 * of this project runs the real program, because it needs an Apple computer.
 */
import { mkdirSync, mkdtempSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import type { BaseImage } from '../../agent/disks/disk.ts';
import type { MachineFolder, VmLaunchPlan } from '../../agent/drivers/driver.ts';
import { homeOf, TartDriver } from '../../agent/drivers/tart/driver.ts';
import { bundleOf } from '../../agent/drivers/tart/files.ts';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { run } from '../../hack/guest/run.ts';
import { guestFile } from '../fixtures/images.ts';
import { machineDocument } from '../fixtures/machines.ts';
import { isAlive } from '../standins/tart/program/life.ts';
import { TartStandIn } from '../standins/tart/program/standin.ts';

export { readGuest, writeGuest } from '../standins/tart/program/disk.ts';

const MEBIBYTE = 1024 ** 2;
const DISK_BYTES = 64 * 1024;
const PROGRAM_MODE = 0o755;
/** Time limit for a copy of the small guest's disk of 64 MiB. */
const CONVERSION_MILLISECONDS = 60_000;
const MACHINE = {
  version: 1,
  arch: 'arm64',
  cpuCountMin: 1,
  cpuCount: 4,
  memorySizeMin: 64 * MEBIBYTE,
  memorySize: 8192 * MEBIBYTE,
  macAddress: '7a:65:e4:3f:b6:02',
  display: { width: 1024, height: 768 },
  diskFormat: 'raw',
};

/** Makes the folder of an image in the layout of Tart, as a pull makes it. The image is small, and its disk is empty. */
export function makeTartImage(folder: string, os: 'darwin' | 'linux'): BaseImage {
  mkdirSync(folder, { recursive: true });
  const path = join(folder, 'disk.raw');
  writeFileSync(path, '');
  truncateSync(path, DISK_BYTES);
  writeFileSync(join(folder, 'nvram.bin'), 'nvram');
  const identity = { ecid: 'ZWNpZA==', hardwareModel: 'bW9kZWw=' };
  const config = { ...MACHINE, os, ...(os === 'darwin' && identity) };
  writeFileSync(join(folder, 'config.json'), JSON.stringify(config));
  return { path, digest: 'sha256:0', format: 'raw', virtualSizeBytes: DISK_BYTES };
}

/**
 * Makes the folder of an image whose configuration says macOS, because only such guests can be suspended. Its disk is that of the small Linux
 * guest of the tests, which the stand-in for `tart` can run in QEMU.
 */
export async function makeGuestImage(folder: string): Promise<BaseImage> {
  const base = makeTartImage(folder, 'darwin');
  const conversion = ['convert', '-O', 'raw', await guestFile('amd64'), base.path];
  await run('qemu-img', conversion, { timeoutMilliseconds: CONVERSION_MILLISECONDS });
  return { ...base, virtualSizeBytes: statSync(base.path).size };
}

/** Returns the plan of a machine with one processor. */
export function tartPlan(name: string, os: Machine['os'], change: Partial<Machine> = {}): VmLaunchPlan {
  const macAddress = '52:54:00:12:34:56';
  return {
    guest: {
      vm: machineDocument(
        { namespace: 'platform-default', name, uid: `vm-${name}` },
        { ...(os && { os }), ...change },
      ),
      diskSizeBytes: undefined,
      iso: undefined,
    },
    cpu: 1,
    memoryBytes: 512 * MEBIBYTE,
    network: { kind: 'user', macAddress, address: undefined, hostAddress: '127.0.0.1', ports: [] },
  };
}

/** Makes the stand-in for `tart` as a program. It becomes the process of a machine, so that this process has the id that the agent knows. */
export function makeTartProgram(path: string): void {
  const main = join(import.meta.dirname, '../standins/tart/program/main.ts');
  const script = ['#!/bin/sh', '# Stand-in for tart.', `exec '${process.execPath}' '${main}' "$@"`, ''];
  writeFileSync(path, script.join('\n'), { mode: PROGRAM_MODE });
}

/** Returns the stand-in as a test sees it: its calls, faults and cues. `dataDirectory` is that of the agent. */
export function tartOf(dataDirectory: string): TartStandIn {
  return new TartStandIn(homeOf(dataDirectory), {
    isAlive,
    send: (pid, signal) => void process.kill(pid, signal),
    find: () => undefined,
  });
}

/** Makes the stand-in for the program `softnet` in a folder. Each call appends its parameters to the file `softnet.calls`. Returns its path. */
export function makeSoftnetProgram(folder: string): string {
  const path = join(folder, 'softnet');
  const script = [
    '#!/bin/sh',
    '# Stand-in for softnet. It filters nothing, and ends with its standard input.',
    '[ "$1" = --help ] && echo "--allow <CIDRs or @host>" && exit',
    `echo "$@" >>'${path}.calls'`,
    'exec cat >/dev/null',
    '',
  ];
  writeFileSync(path, script.join('\n'), { mode: PROGRAM_MODE });
  return path;
}

export class TartHost implements AsyncDisposable {
  readonly directory = mkdtempSync(join(tmpdir(), 'berth-tart-'));
  readonly program = join(this.directory, 'tart-stand-in');
  readonly images: { darwin: BaseImage; linux: BaseImage };
  readonly tart = tartOf(this.directory);
  driver: TartDriver;
  /** Whether the host serves screens. A change takes effect when the agent starts again. */
  screens = true;

  constructor() {
    makeTartProgram(this.program);
    this.images = {
      darwin: makeTartImage(join(this.directory, 'image-macos'), 'darwin'),
      linux: makeTartImage(join(this.directory, 'image-linux'), 'linux'),
    };
    this.driver = this.#make();
  }

  folder(uid: string): MachineFolder {
    return { uid, path: join(this.directory, 'machines', uid) };
  }

  /** Path of a machine's disk. */
  disk(uid: string): string {
    return join(bundleOf(homeOf(this.directory), uid), 'disk.img');
  }

  /** Closes the driver and makes another one, as a restart of the agent does. */
  async restartAgent(): Promise<void> {
    await this.driver.close();
    this.driver = this.#make();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const folder of await this.driver.list()) {
      await this.driver.delete(folder);
    }
    await this.driver.close();
    rmSync(this.directory, { recursive: true, force: true });
  }

  #make(): TartDriver {
    const logger = pino({ level: process.env['LOG_LEVEL'] ?? 'silent' });
    return new TartDriver({
      dataDirectory: this.directory,
      program: this.program,
      screens: this.screens,
      logger,
    });
  }
}
