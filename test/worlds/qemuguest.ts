/** Parts that tests with real QEMU guests share: a driver with a folder of its own, and the guest's page. */
import { randomUUID } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import type { VmLaunchPlan, MachineFolder, MachineState } from '../../agent/drivers/driver.ts';
import { QemuDriver } from '../../agent/drivers/qemu/driver.ts';
import type { RunAs } from '../../base/exec.ts';
import type { BaseImage } from '../../agent/disks/disk.ts';
import { identify, waitForExit } from '../../agent/processes/process.ts';
import { makeDocuments, type SeedFiles, writeSeedFiles } from '../../agent/seed/seed.ts';
import type { GuestArchitecture } from '../../hack/guest.ts';
import { machineDocument } from '../fixtures/machines.ts';
import { guestFile } from '../fixtures/images.ts';
import { keepPlatforms, lendPlatforms } from '../../hack/cluster/agent.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { waitFor } from '../../hack/wait.ts';

/**
 * Time limit for the boot of emulated guests on a busy machine, in milliseconds. On an idle machine they take 5 s (amd64) and 9 s
 * (arm64).
 */
export const BOOT_DEADLINE_MILLISECONDS = 90_000;
const VM = { namespace: 'platform-default', name: 'guest', uid: 'b5c8f1de-0000-4000-8000-000000000001' };
const LOOPBACK = '127.0.0.1';
const MAC_ADDRESS = '52:54:00:12:34:56';
/**
 * Time limit of a request to a guest that may not listen yet, in milliseconds. Without a limit, a connection that the hypervisor
 * accepted for the guest could hang.
 */
const LOOK_MILLISECONDS = 2_000;
/** Time limit of an action in a running guest, in milliseconds. It is long, because a repeated request would run some actions twice. */
const ACTION_MILLISECONDS = 60_000;
const GUEST_DISK_BYTES = 64 * 1024 * 1024;
const MEBIBYTE = 1024 * 1024;
/** Memory of guests, in bytes. With less memory, UEFI finds no space for the arm64 kernel, which is not compressed. */
const GUEST_MEMORY_BYTES = { amd64: 128 * MEBIBYTE, arm64: 256 * MEBIBYTE };

export interface Host {
  directory: string;
  driver: QemuDriver;
  /** Closes the driver and makes another driver on the same folder, as a restart of the agent does. */
  restartAgent(): Promise<QemuDriver>;
  end(): Promise<void>;
}

export async function makeHost(): Promise<Host> {
  const directory = await mkdtemp(join(tmpdir(), 'berth-qemu-'));
  lendPlatforms(directory);
  const logger = pino({ level: process.env['LOG_LEVEL'] ?? 'silent' });
  const make = () => new QemuDriver({ dataDirectory: directory, logger });
  const host: Host = {
    directory,
    driver: make(),
    async restartAgent() {
      await host.driver.close();
      host.driver = make();
      return host.driver;
    },
    async end() {
      for (const folder of await host.driver.list()) {
        await host.driver.delete(folder);
      }
      await host.driver.close();
      keepPlatforms(directory);
      await rm(directory, { recursive: true, force: true });
    },
  };
  return host;
}

export function folderOf(host: Host, uid: string): MachineFolder {
  return { uid, path: join(host.directory, 'machines', uid) };
}

export async function guestBase(architecture: GuestArchitecture): Promise<BaseImage> {
  const path = await guestFile(architecture);
  return { path, digest: 'sha256:unused', format: 'qcow2', virtualSizeBytes: GUEST_DISK_BYTES };
}

/** Returns a plan for a guest with its page on a port of the loopback address. */
export function planFor(architecture: GuestArchitecture, port: number, diskSizeBytes?: number): VmLaunchPlan {
  return {
    guest: {
      diskSizeBytes,
      iso: undefined,
      vm: machineDocument(VM, { architecture }),
    },
    cpu: 1,
    memoryBytes: GUEST_MEMORY_BYTES[architecture],
    network: {
      kind: 'user',
      macAddress: MAC_ADDRESS,
      address: undefined,
      hostAddress: LOOPBACK,
      ports: [{ protocol: 'TCP', hostPort: port, guestPort: 80 }],
    },
  };
}

/** User data of {@link seedFor}: an Ignition config, which is also on the seed disk. */
export const IGNITION = '{"ignition":{"version":"3.4.0"}}';

/** Writes a seed into the folder of a machine that exists, and returns its files for the start. */
export async function seedFor({ path }: MachineFolder, { guest, ...size }: VmLaunchPlan): Promise<SeedFiles> {
  return await writeSeedFiles(path, makeDocuments(guest.vm, { ...size, host: 'here', userData: IGNITION }));
}

/** One machine on a host of its own. Its guest serves its page on a port of the loopback address. */
export class TestMachine {
  readonly host: Host;
  readonly folder: MachineFolder;
  readonly port: number;
  readonly plan: VmLaunchPlan;

  private constructor(host: Host, port: number, plan: VmLaunchPlan) {
    this.host = host;
    // Processes of machines are found by the uid, so it differs from those of other tests.
    this.folder = folderOf(host, randomUUID());
    this.port = port;
    this.plan = plan;
  }

  /** Makes the host with an amd64 machine, which has no disk yet. */
  static async make({
    diskSizeBytes,
    runAs,
  }: {
    diskSizeBytes?: number;
    runAs?: RunAs;
  } = {}): Promise<TestMachine> {
    const port = await freePort();
    return new TestMachine(await makeHost(), port, { ...planFor('amd64', port, diskSizeBytes), runAs });
  }

  get driver(): QemuDriver {
    return this.host.driver;
  }

  async create(base: BaseImage | undefined): Promise<void> {
    await this.driver.create(this.folder, this.plan, base);
  }

  async start(): Promise<void> {
    await this.driver.start(this.folder, this.plan);
  }

  async stop(graceMilliseconds: number): Promise<void> {
    await this.driver.stop(this.folder, { graceMilliseconds });
  }

  async state(): Promise<MachineState> {
    return await this.driver.inspect(this.folder);
  }

  /** @throws Error when the machine does not run. */
  async pid(): Promise<number> {
    const state = await this.state();
    if (state.kind !== 'running') {
      throw new Error(`the machine is ${state.kind}`);
    }
    return state.pid;
  }

  async page(): Promise<Record<string, string>> {
    return await page(this.port);
  }

  async tell(action: string): Promise<string> {
    return await tell(this.port, action);
  }
}

/** The guest's own report, with its address and all lines. The web server cuts the end off while the guest replaces the report. */
const COMPLETE_REPORT = /^address=.+\n[^]*^disk_sectors=\d*\n$/m;

/** Returns the guest's own report when its web server answers, complete and with the guest's address. */
export async function page(port: number, address = LOOPBACK): Promise<Record<string, string>> {
  const look = async () => {
    const text = await get(`http://${address}:${port}/`, LOOK_MILLISECONDS);
    return text !== undefined && COMPLETE_REPORT.test(text) && text;
  };
  const text = await waitFor('the guest to serve its page', look, {
    deadlineMilliseconds: BOOT_DEADLINE_MILLISECONDS,
  });
  return Object.fromEntries(
    text
      .split('\n')
      .filter((line) => line.includes('='))
      .map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]),
  );
}

/** Requests `/cgi-bin/do?ACTION` from a guest whose web server already answers. */
export async function tell(port: number, action: string, address = LOOPBACK): Promise<string> {
  const ask = async () => await get(`http://${address}:${port}/cgi-bin/do?${action}`, ACTION_MILLISECONDS);
  return await waitFor(`the guest to do ${action}`, ask, {
    deadlineMilliseconds: BOOT_DEADLINE_MILLISECONDS,
  });
}

/**
 * Powers off the guest and resolves when it no longer answers. The guest may end before its answer to the request arrives. The guest gets
 * the request only once if it answers, because a second power-off would begin while the first one shuts down the disk.
 */
export async function powerOff(port: number): Promise<void> {
  const url = `http://${LOOPBACK}:${port}`;
  let isAsked = false;
  const isOff = async () => {
    isAsked ||= (await get(`${url}/cgi-bin/do?poweroff`, LOOK_MILLISECONDS)) !== undefined;
    return (await get(`${url}/`, LOOK_MILLISECONDS)) === undefined;
  };
  await waitFor('the guest to power off', isOff, { deadlineMilliseconds: BOOT_DEADLINE_MILLISECONDS });
}

/**
 * Ends a hypervisor by SIGTERM, and resolves when the process has ended. The hypervisor reports the signal. While it ends, its
 * state looks like that after a power-off by the guest.
 */
export async function terminate(pid: number): Promise<void> {
  const identity = await identify(pid);
  if (identity === undefined) {
    throw new Error(`there is no process ${pid}`);
  }
  process.kill(pid, 'SIGTERM');
  if (!(await waitForExit(identity, ACTION_MILLISECONDS))) {
    throw new Error(`process ${pid} did not end`);
  }
}

async function get(url: string, milliseconds: number): Promise<string | undefined> {
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(milliseconds) });
    return response.ok ? await response.text() : undefined;
  } catch (error) {
    // The guest is not ready: nothing listens, or QEMU's forwarding closes the connection.
    if (error instanceof TypeError || error instanceof DOMException) {
      return undefined;
    }
    throw error;
  }
}
