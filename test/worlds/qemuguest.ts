/** What tests with real QEMU guests share: a driver on a folder of its own, and the guest's page. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import type { LaunchPlan, MachineFolder } from '../../agent/drivers/driver.ts';
import { QemuDriver } from '../../agent/drivers/qemu/driver.ts';
import type { BaseImage } from '../../agent/disks/disk.ts';
import { identify, waitForExit } from '../../agent/machines/process.ts';
import { MACHINE_API_VERSION } from '../../api/v1alpha1/machine.ts';
import type { GuestArchitecture } from '../../hack/guest.ts';
import { guestFile } from '../fixtures/images.ts';
import { waitFor } from '../../hack/wait.ts';

/** Emulated guests on a busy machine; on an idle one they take 5 s (amd64) and 9 s (arm64). */
export const BOOT_DEADLINE_MILLISECONDS = 90_000;
const LOOPBACK = '127.0.0.1';
const MAC_ADDRESS = '52:54:00:12:34:56';
/** Where nobody may listen yet: what the hypervisor has taken for the guest may hang for ever. */
const LOOK_MILLISECONDS = 2_000;
/** A guest that serves is asked once: some actions, begun twice, would run twice. */
const ACTION_MILLISECONDS = 60_000;
const GUEST_DISK_BYTES = 64 * 1024 * 1024;
const MEBIBYTE = 1024 * 1024;
/** With less, UEFI finds no room for the arm64 kernel, which is not compressed. */
const GUEST_MEMORY_BYTES = { amd64: 128 * MEBIBYTE, arm64: 256 * MEBIBYTE };

export interface Host {
  directory: string;
  driver: QemuDriver;
  /** Another driver on the same folder, as after a restart of the agent; the first is let go of. */
  restartAgent(): Promise<QemuDriver>;
  end(): Promise<void>;
}

export async function makeHost(): Promise<Host> {
  const directory = await mkdtemp(join(tmpdir(), 'berth-qemu-'));
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

/** A guest with its page on a port of the loopback address. */
export function planFor(architecture: GuestArchitecture, port: number, diskSizeBytes?: number): LaunchPlan {
  return {
    guest: {
      diskSizeBytes,
      iso: undefined,
      vm: {
        apiVersion: MACHINE_API_VERSION,
        vm: { namespace: 'platform-default', name: 'guest', uid: 'b5c8f1de-0000-4000-8000-000000000001' },
        attempt: 1,
        architecture,
        imageFormat: 'Auto',
        network: { mode: 'NAT' },
        ports: [],
        vnc: { enabled: false },
        readiness: { type: 'None' },
        hardware: {
          uuid: '4f1c2a6e-3b8d-4c55-9a77-0123456789ab',
          serialNumber: 'BERTH00001',
          macAddress: MAC_ADDRESS,
        },
        guestMetadata: {},
      },
    },
    cpu: 1,
    memoryBytes: GUEST_MEMORY_BYTES[architecture],
    network: {
      kind: 'user',
      macAddress: MAC_ADDRESS,
      address: undefined,
      forwards: [{ protocol: 'TCP', hostAddress: LOOPBACK, hostPort: port, guestPort: 80 }],
    },
  };
}

/** The guest's own report, once its web server answers; with its address it is complete. */
export async function page(port: number, address = LOOPBACK): Promise<Record<string, string>> {
  const look = async () => {
    const text = await get(`http://${address}:${port}/`, LOOK_MILLISECONDS);
    return text !== undefined && /^address=./m.test(text) && text;
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

/** `/cgi-bin/do?ACTION` of the guest, whose web server answers already. */
export async function tell(port: number, action: string, address = LOOPBACK): Promise<string> {
  const ask = async () => await get(`http://${address}:${port}/cgi-bin/do?${action}`, ACTION_MILLISECONDS);
  return await waitFor(`the guest to do ${action}`, ask, {
    deadlineMilliseconds: BOOT_DEADLINE_MILLISECONDS,
  });
}

/** The guest may be gone before its answer is through: what counts is that it answers no more. */
export async function powerOff(port: number): Promise<void> {
  const url = `http://${LOOPBACK}:${port}`;
  const isOff = async () => {
    await get(`${url}/cgi-bin/do?poweroff`, LOOK_MILLISECONDS);
    return (await get(`${url}/`, LOOK_MILLISECONDS)) === undefined;
  };
  await waitFor('the guest to power off', isOff, { deadlineMilliseconds: BOOT_DEADLINE_MILLISECONDS });
}

/** Ends a hypervisor by SIGTERM, which it tells; resolves when it is gone. While it ends it looks like one whose guest powered off. */
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
    // Not up yet: QEMU's forwarding closes the connection, or nobody listens.
    if (error instanceof TypeError || error instanceof DOMException) {
      return undefined;
    }
    throw error;
  }
}
