/**
 * Modules with which the driver of QEMU meets simulated hypervisors instead of real programs. Each function gets the original module, and returns
 * the one in its place. Each change of a file or process is a step at which the agent can die.
 */
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { MachineFolder } from '../../agent/drivers/driver.ts';
import type { GuestPlatform } from '../../agent/drivers/qemu/platform.ts';
import type * as processes from '../../agent/processes/process.ts';
import type * as time from '../../base/time.ts';
import { asStep, lives } from './lives.ts';
import { commitOverlay, isWritable } from './simulateddisk.ts';
import type { SimulatedHost } from './simulatedqemu.ts';

type Identity = { pid: number };
/** Block node of QEMU with a file, and the node under it. */
type Disk = { file: { filename: string }; backing?: Disk | null };

const PLATFORM: GuestPlatform = {
  architecture: 'amd64',
  binary: 'qemu',
  machineType: 'pc-q35-7.2',
  accelerator: 'tcg',
  firmware: undefined,
  display: { virtioVga: true, dbus: false, vncMaximum: { width: 1, height: 1 } },
  runWith: false,
  version: '7.2.22',
  readOnlyMemory: false,
};

/** Returns the modules of a test file. `host` has its world before any of them is used. */
export function qemuModules(host: { world: SimulatedHost }) {
  return {
    time: (original: typeof time): object => {
      const pause: typeof original.pause = async (milliseconds, signal) => {
        await original.pause(milliseconds, signal);
        lives.getStore()?.check();
      };
      return { ...original, pause };
    },

    files: (original: object): object => {
      const removeTrees = asStep((paths: string[]) => {
        paths.forEach((path) => rmSync(path, { recursive: true, force: true }));
      });
      return { ...original, removeTrees };
    },

    qemuimg: (original: object): object => {
      const createQcow2 = asStep((path: string, _size: number, base?: { path: string }) => {
        writeFileSync(path, JSON.stringify({ base: base?.path }));
      });
      const convertToRaw = asStep((_source: unknown, target: string, { folder }: { folder: string }) => {
        writeFileSync(target, JSON.stringify({ own: host.world.in(folder)?.snapshot }));
      });
      const commitDisk = asStep((node: Disk, { folder }: { folder: string }) => {
        const [top, base] = [node, node.backing].map((one) => one?.file.filename ?? '') as [string, string];
        // qemu-img also opens the upper file for writing.
        if (![top, base].every((name) => isWritable(join(folder, name)))) {
          throw new Error('qemu-img commit: Permission denied');
        }
        commitOverlay(folder, top, base);
      });
      return { ...original, createQcow2, convertToRaw, commitDisk };
    },

    processes: (original: typeof processes): object => {
      const end = asStep(({ pid }: Identity) => host.world.processes.get(pid)?.end());
      const find = async (mark: string) => {
        lives.getStore()?.check();
        const found = host.world.of(mark.replace('guest=berth-', ''));
        return await Promise.resolve(found && host.world.identify(found.pid));
      };
      return {
        ...original,
        connectTo: async (path: string) => {
          lives.getStore()?.check();
          return await original.connectTo(path);
        },
        isAlive: async ({ pid }: Identity) => await Promise.resolve(host.world.processes.has(pid)),
        waitForExit: async ({ pid }: Identity) => await Promise.resolve(!host.world.processes.has(pid)),
        killForCertain: end,
        findByArgument: find,
        killByArgument: async (mark: string) => {
          const found = await find(mark);
          await (found && end(found));
        },
      };
    },

    machineProcess: (original: object): object => {
      const launch = asStep((folder: MachineFolder, { command }: { command: string[] }) => {
        const started = host.world.start(folder.path, command);
        return { identity: host.world.identify(started.pid), exited: started.exited.promise };
      });
      return { ...original, launch };
    },

    platform: (original: object): object => ({
      ...original,
      HostPlatforms: class {
        async of(): Promise<GuestPlatform> {
          return await Promise.resolve(PLATFORM);
        }
      },
    }),
  };
}
