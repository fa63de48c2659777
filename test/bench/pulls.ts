/** Measures pulls of a large disk from a registry on this machine, compared with the limits of the machine. */
import { execFile } from 'node:child_process';
import { constants } from 'node:fs';
import { access, mkdir, rm, statfs, symlink, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { bundleInto } from '../../hack/bundle.ts';
import { startRegistry, type TestRegistry } from '../wires/registry.ts';
import { pushContainerDisk } from '../fixtures/vmimages.ts';
import { IMAGE_ENVIRONMENT } from './contestants.ts';
import { withFolder } from './folder.ts';
import type { Errand, Outcome } from './imageprocess.ts';
import { cpuSecondsOfChildren } from './measure.ts';
import { writeTestDisk } from './testdisk.ts';

const execute = promisify(execFile);

const GIB = 1024 ** 3;
const VIRTUAL_BYTES = 8 * GIB;
const DATA_BYTES = 4 * GIB;
/** A large disk, for the measurement of memory. It has more and larger chunks, and most of it is holes. */
const LARGE_VIRTUAL_BYTES = 100 * GIB;
const LARGE_DATA_BYTES = 2 * GIB;
/** Space for the disk, for its packed form, for the registry, and for the writes of one round. */
const ROOM_BYTES = 20 * GIB;
const PROGRAMS = ['docker-registry', 'skopeo', 'tar', 'zstd', 'qemu-img'];
/** Time limit for gigabytes on a slow disk. */
const LIMIT_MILLISECONDS = 300_000;

export interface Measured {
  seconds: number;
  cpuSeconds?: number;
  peakMegabytes?: number;
  /** Bytes that were transferred or written. */
  bytes: number;
}

export interface Pulls {
  virtualBytes: number;
  /** Allocated bytes of the disk. */
  dataBytes: number;
  artifactBytes: number;
  publish: Measured;
  /** Results of each contestant, one for each round. */
  rounds: { artifact: Measured; skopeo: Measured; disk: Measured; ceiling: Measured }[];
  containerDisk: { pull: Measured; skopeo: Measured };
  /** Results for a disk of 100 GiB with 2 GiB of data. */
  large: { publish: Measured; pull: Measured };
}

/**
 * Measures in a new folder below `parent`. @throws Error when a program is missing or there is not enough space.
 */
export async function measurePulls(parent: string, rounds: number): Promise<Pulls> {
  await checkPrograms();
  await checkRoom(parent);
  return await withFolder(parent, async (folder) => {
    const registry = await startRegistry({ directory: join(folder, 'registry'), password: false });
    try {
      return await new PullBench(folder, registry).run(rounds);
    } finally {
      await registry.close();
    }
  });
}

async function checkPrograms(): Promise<void> {
  const folders = (process.env['PATH'] ?? '').split(delimiter);
  const isThere = async (name: string): Promise<boolean> => {
    const found = await Promise.allSettled(folders.map((one) => access(join(one, name), constants.X_OK)));
    return found.some(({ status }) => status === 'fulfilled');
  };
  const there = await Promise.all(PROGRAMS.map(isThere));
  const missing = PROGRAMS.filter((_, index) => there[index] !== true);
  if (missing.length > 0) {
    throw new Error(`the benchmark of pulls needs ${missing.join(', ')}`);
  }
}

async function checkRoom(folder: string): Promise<void> {
  const { bavail, bsize } = await statfs(folder);
  if (bavail * bsize >= ROOM_BYTES) {
    return;
  }
  throw new Error(`the benchmark of pulls needs ${ROOM_BYTES / GIB} GiB in ${folder}: name another --folder`);
}

class PullBench {
  readonly #folder: string;
  readonly #registry: TestRegistry;
  readonly #disk: string;
  readonly #written: string;
  #size = { virtualBytes: VIRTUAL_BYTES, dataBytes: DATA_BYTES };

  constructor(folder: string, registry: TestRegistry) {
    this.#folder = folder;
    this.#registry = registry;
    this.#disk = join(folder, 'disk.raw');
    this.#written = join(folder, 'written');
  }

  async run(count: number): Promise<Pulls> {
    this.#makeDisk(VIRTUAL_BYTES, DATA_BYTES);
    await this.#bundle();
    const publish = await this.#round(async () => await this.#process('publish', 'bench/artifact'));
    await this.#publishContainerDisk();
    const rounds: Pulls['rounds'] = [];
    for (let round = 0; round < count; round += 1) {
      rounds.push(
        await this.#round(async () => ({
          // The system gets time to reclaim freed memory and space.
          ceiling: await this.#process('ceiling', 'bench/artifact'),
          skopeo: await this.#skopeo('bench/artifact'),
          artifact: await this.#process('pull', 'bench/artifact'),
          disk: await this.#process('disk', 'bench/artifact'),
        })),
      );
    }
    const containerDisk = await this.#round(async () => ({
      skopeo: await this.#skopeo('bench/containerdisk'),
      pull: await this.#process('pull', 'bench/containerdisk'),
    }));
    this.#makeDisk(LARGE_VIRTUAL_BYTES, LARGE_DATA_BYTES);
    const large = await this.#round(async () => ({
      publish: await this.#process('publish', 'bench/large'),
      pull: await this.#process('pull', 'bench/large'),
    }));
    const [virtualBytes, dataBytes, artifactBytes] = [VIRTUAL_BYTES, DATA_BYTES, publish.bytes];
    return { virtualBytes, dataBytes, artifactBytes, publish, rounds, containerDisk, large };
  }

  #makeDisk(virtualBytes: number, dataBytes: number): void {
    writeTestDisk(this.#disk, virtualBytes, dataBytes);
    this.#size = { virtualBytes, dataBytes };
  }

  /** Runs a bundle like that of the agent. Otherwise the TypeScript loader of Node.js would be measured too. */
  async #bundle(): Promise<void> {
    const entry = join(import.meta.dirname, 'imageprocess.ts');
    await bundleInto(this.#folder, { imageprocess: entry });
    await writeFile(join(this.#folder, 'package.json'), '{"type":"module"}');
    // Packages that a bundle needs at run time.
    const modules = join(import.meta.dirname, '..', '..', 'node_modules');
    await symlink(modules, join(this.#folder, 'node_modules'));
  }

  /** Makes a qcow2 file, because container disks are published in this form. */
  async #publishContainerDisk(): Promise<void> {
    const qcow2 = join(this.#folder, 'disk.qcow2');
    await execute('qemu-img', ['convert', '-f', 'raw', '-O', 'qcow2', this.#disk, qcow2]);
    const options = { encoding: 'zstd', fileName: 'disk.qcow2' } as const;
    await pushContainerDisk(this.#registry, 'bench/containerdisk', qcow2, options);
    await rm(qcow2);
  }

  async #process(work: string, repository: string): Promise<Measured> {
    const { directHost: host, caFile } = this.#registry;
    const dataDirectory = join(this.#written, 'agent');
    const errand: Errand = {
      host,
      caFile,
      repository,
      dataDirectory,
      disk: this.#disk,
      ...this.#size,
    };
    const { stdout, cpuSeconds } = await this.#undisturbed(async () => {
      const program = join(this.#folder, 'imageprocess.js');
      const options = { timeout: LIMIT_MILLISECONDS, env: { ...process.env, ...IMAGE_ENVIRONMENT } };
      return await execute(process.execPath, [program, work, JSON.stringify(errand)], options);
    });
    return { ...(JSON.parse(stdout) as Outcome), cpuSeconds };
  }

  /** Copies the blobs without decoding them. */
  async #skopeo(repository: string): Promise<Measured> {
    const to = join(this.#written, 'copy');
    const from = `docker://${this.#registry.directHost}/${repository}:latest`;
    const { cpuSeconds, seconds, stdout } = await this.#undisturbed(async () => {
      const began = performance.now();
      await this.#registry.skopeo('copy', from, `dir:${to}`);
      const seconds = (performance.now() - began) / 1000;
      return { seconds, ...(await execute('du', ['-sb', to])) };
    });
    return { seconds, cpuSeconds, bytes: Number.parseInt(stdout, 10) };
  }

  /**
   * Removes the files only at the end of the round. Freed memory is written at three times the speed on a virtual machine that gets its
   * memory at first use. That would favour the next contestant.
   */
  async #round<T>(work: () => Promise<T>): Promise<T> {
    await mkdir(this.#written);
    try {
      return await work();
    } finally {
      await rm(this.#written, { recursive: true });
    }
  }

  /** Waits until all earlier writes are on the disk. */
  async #undisturbed<T extends object>(work: () => Promise<T>): Promise<T & { cpuSeconds: number }> {
    await execute('sync');
    const before = cpuSecondsOfChildren();
    const result = await work();
    return { ...result, cpuSeconds: cpuSecondsOfChildren() - before };
  }
}
