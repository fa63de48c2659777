/** Facts of this host that its Node shows: architecture, system, processors, memory, disk. */
import { readFileSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { availableParallelism, cpus, machine, platform, release, totalmem } from 'node:os';
import { hasCode, undefinedIfSync } from '../../base/errors.ts';
import { run } from '../../base/exec.ts';
import type { NodeSystemInfo } from '../../kube/core.ts';
import type { Architecture } from '../drivers/driver.ts';
import { hostBootId } from '../processes/process.ts';

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
  const { osImage, machineID, bootID, hugePageBytes } =
    process.platform === 'darwin' ? await readMac() : readLinux();
  return {
    architecture,
    system: {
      architecture,
      operatingSystem: platform(),
      osImage,
      kernelVersion: release(),
      kubeProxyVersion: '',
      containerRuntimeVersion: hypervisor,
      machineID,
      systemUUID: machineID,
      bootID,
    },
    cpus: processors(),
    memoryBytes: totalmem() - hugePageBytes,
    diskBytes: disk.bsize * disk.blocks,
  };
}

/** Facts that each operating system tells in its own way. */
interface SystemFacts {
  osImage: string;
  machineID: string;
  bootID: string;
  hugePageBytes: number;
}

/** Time limit of the programs that print facts of macOS. They usually answer within milliseconds. */
const PROGRAM = { timeoutMilliseconds: 5_000 };

async function readMac(): Promise<SystemFacts> {
  const [version, device, bootID] = await Promise.all([
    run('sw_vers', ['-productVersion'], PROGRAM),
    run('ioreg', ['-rd1', '-c', 'IOPlatformExpertDevice'], PROGRAM),
    hostBootId(),
  ]);
  const [, machineID = ''] = /"IOPlatformUUID" = "([^"]+)"/.exec(device) ?? [];
  return { osImage: `macOS ${version.trim()}`, machineID, bootID, hugePageBytes: 0 };
}

function readLinux(): SystemFacts {
  return {
    osImage: readImageName(),
    machineID: firstLine('/etc/machine-id'),
    bootID: firstLine('/proc/sys/kernel/random/boot_id'),
    hugePageBytes: readHugePageBytes(),
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
function readHugePageBytes(): number {
  const [, kibibytes = 0] = /^Hugetlb:\s+(\d+) kB$/m.exec(readIfThere('/proc/meminfo')) ?? [];
  return Number(kibibytes) * 1024;
}

function readImageName(): string {
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
