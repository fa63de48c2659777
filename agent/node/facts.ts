/** Facts of this host that its Node shows: architecture, system, processors, memory, disk. */
import { readFileSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { availableParallelism, cpus, machine, platform, release, totalmem } from 'node:os';
import { hasCode, undefinedIfSync } from '../../base/errors.ts';
import type { NodeSystemInfo } from '../../kube/core.ts';
import type { Architecture } from '../drivers/driver.ts';

export interface HostFacts {
  architecture: Architecture;
  /** Facts that the Node shows as its `nodeInfo`, beside a version. */
  system: Omit<NodeSystemInfo, 'kubeletVersion'>;
  cpus: number;
  memoryBytes: number;
  diskBytes: number;
}

const ARCHITECTURES: Readonly<Record<string, Architecture>> = {
  x86_64: 'amd64',
  aarch64: 'arm64',
  arm64: 'arm64',
};

/** Returns this computer's architecture under the name that Go uses. @throws Error when the architecture is neither `amd64` nor `arm64`. */
export function nativeArchitecture(): Architecture {
  const found = ARCHITECTURES[machine()];
  if (found === undefined) {
    throw new Error(`A computer of architecture ${machine()} cannot be a host; use amd64 or arm64`);
  }
  return found;
}

/** Reads the facts of this host. `hypervisor` names the hypervisor and its accelerators, for example `qemu://kvm`. */
export async function hostFacts(
  config: { dataDirectory: string; architecture?: Architecture | undefined },
  hypervisor: string,
): Promise<HostFacts> {
  const disk = await statfs(config.dataDirectory);
  const architecture = config.architecture ?? nativeArchitecture();
  const machineID = firstLine('/etc/machine-id');
  return {
    architecture,
    system: {
      architecture,
      operatingSystem: platform(),
      osImage: osImage(),
      kernelVersion: release(),
      kubeProxyVersion: '',
      containerRuntimeVersion: hypervisor,
      machineID,
      systemUUID: machineID,
      bootID: firstLine('/proc/sys/kernel/random/boot_id'),
    },
    cpus: processors(),
    memoryBytes: totalmem() - hugePageBytes(),
    diskBytes: disk.bsize * disk.blocks,
  };
}

/**
 * Returns the number of processors for machines. Machines of root have their own control groups, so the CPU limit of the agent's container
 * or service does not apply to them. Other machines share the limits of the agent. `availableParallelism` respects these limits.
 */
function processors(): number {
  return process.getuid?.() === 0 ? cpus().length : availableParallelism();
}

/**
 * Returns the memory that the host has set aside for huge pages. Machines cannot use it, because QEMU gets normal pages. A kubelet leaves
 * this memory out, too.
 */
function hugePageBytes(): number {
  const [, kibibytes = 0] = /^Hugetlb:\s+(\d+) kB$/m.exec(readIfThere('/proc/meminfo')) ?? [];
  return Number(kibibytes) * 1024;
}

function osImage(): string {
  const line = readIfThere('/etc/os-release')
    .split('\n')
    .find((text) => text.startsWith('PRETTY_NAME='));
  return line === undefined ? platform() : line.slice('PRETTY_NAME='.length).replaceAll('"', '');
}

function firstLine(file: string): string {
  return readIfThere(file).split('\n')[0] ?? '';
}

function readIfThere(file: string): string {
  return undefinedIfSync(hasCode('ENOENT', 'EACCES'), () => readFileSync(file, 'utf8')) ?? '';
}
