/** Pulls of a large disk from a registry on this machine, beside what the machine gives at most. */
import { execFile } from 'node:child_process';
import { constants } from 'node:fs';
import { access, mkdir, rm, statfs, symlink, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { bundleInto } from '../../hack/bundle.ts';
import { startRegistry, type TestRegistry } from '../wires/registry.ts';
import { pushContainerDisk } from '../fixtures/vmimages.ts';
import { withFolder } from './folder.ts';
import type { Errand, Outcome } from './imageprocess.ts';
import { cpuSecondsOfChildren } from './measure.ts';
import { writeTestDisk } from './testdisk.ts';

const execute = promisify(execFile);

const GIB = 1024 ** 3;
const VIRTUAL_BYTES = 8 * GIB;
const DATA_BYTES = 4 * GIB;
/** A large one, whose memory is measured: its chunks are larger, and there are more of them. Most of it is holes. */
const LARGE_VIRTUAL_BYTES = 100 * GIB;
const LARGE_DATA_BYTES = 2 * GIB;
/** The disk, the same packed and in the registry, and what one round writes. */
const ROOM_BYTES = 20 * GIB;
const PROGRAMS = ['docker-registry', 'skopeo', 'tar', 'zstd', 'qemu-img'];
/** Gigabytes on a slow disk. */
const LIMIT_MILLISECONDS = 300_000;

export interface Measured {
  seconds: number;
  cpuSeconds?: number;
  peakMegabytes?: number;
  /** Moved or written. */
  bytes: number;
}

export interface Pulls {
  virtualBytes: number;
  /** What the disk has allocated. */
  dataBytes: number;
  artifactBytes: number;
  publish: Measured;
  /** One of each per round. */
  rounds: { artifact: Measured; skopeo: Measured; disk: Measured; ceiling: Measured }[];
  containerDisk: { pull: Measured; skopeo: Measured };
  /** Of a disk of 100 GiB with 2 GiB of data. */
  large: { publish: Measured; pull: Measured };
}

/** Everything is made in a folder below `parent`, which is removed. @throws Error when a program or the room is missing. */
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
          // What was freed before has time to be forgotten.
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

  /** As the agent is run, or Node's TypeScript loader would be measured too. */
  async #bundle(): Promise<void> {
    const entry = join(import.meta.dirname, 'imageprocess.ts');
    await bundleInto(this.#folder, { imageprocess: entry });
    await writeFile(join(this.#folder, 'package.json'), '{"type":"module"}');
    // What a bundle requires at run time.
    const modules = join(import.meta.dirname, '..', '..', 'node_modules');
    await symlink(modules, join(this.#folder, 'node_modules'));
  }

  /** As qcow2, as they are published. */
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
      const options = { timeout: LIMIT_MILLISECONDS };
      return await execute(process.execPath, [program, work, JSON.stringify(errand)], options);
    });
    return { ...(JSON.parse(stdout) as Outcome), cpuSeconds };
  }

  /** Of the blobs as they are: it decodes nothing. */
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
   * What is written stays until the end of the round: memory that was just freed is written to at three times the speed, where a
   * virtual machine gets its memory when it first touches it, and would favour who comes next.
   */
  async #round<T>(work: () => Promise<T>): Promise<T> {
    await mkdir(this.#written);
    try {
      return await work();
    } finally {
      await rm(this.#written, { recursive: true });
    }
  }

  /** Nothing that was written before still waits for the disk. */
  async #undisturbed<T extends object>(work: () => Promise<T>): Promise<T & { cpuSeconds: number }> {
    await execute('sync');
    const before = cpuSecondsOfChildren();
    const result = await work();
    return { ...result, cpuSeconds: cpuSecondsOfChildren() - before };
  }
}
