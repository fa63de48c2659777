/** Reads the parts of a Linux host that its machines need. */
import { constants } from 'node:fs';
import { access } from 'node:fs/promises';
import { codeOf, hasCode } from '../../base/errors.ts';
import { findProgram, run } from '../../base/exec.ts';
import { BINARIES } from '../drivers/qemu/platform.ts';
import { missingForNat } from '../network/nat/nat.ts';
import { nativeArchitecture } from '../node/facts.ts';
import { findHierarchies, type Hierarchy, ROOTS } from '../processes/cgroup.ts';
import { type Fact, PROGRAM, readFact } from './fact.ts';

export interface LinuxFacts {
  readonly kvm: Fact<'usable' | 'missing' | 'forbidden'>;
  /** First line of what the QEMU for the architecture of this host tells as its version. */
  readonly qemu: Fact<string>;
  readonly controlGroups: Fact<readonly Hierarchy[]>;
  /** Parts that the network driver needs and this host lacks. */
  readonly missingForNetwork: Fact<readonly string[]>;
}

const KVM = '/dev/kvm';

/** Reads all facts. `driver` is the network driver of the configuration. */
export async function readLinux(driver: 'nat' | 'user'): Promise<LinuxFacts> {
  const [kvm, qemu, controlGroups, missingForNetwork] = await Promise.all([
    readFact(readKvm),
    readFact(readQemu),
    readFact(async () => await findHierarchies(ROOTS)),
    readFact(async () => (driver === 'nat' ? await missingForNat() : await missingForUser())),
  ]);
  return { kvm, qemu, controlGroups, missingForNetwork };
}

async function readKvm(): Promise<'usable' | 'missing' | 'forbidden'> {
  try {
    await access(KVM, constants.R_OK + constants.W_OK);
    return 'usable';
  } catch (error) {
    if (!hasCode('ENOENT', 'EACCES', 'EPERM')(error)) {
      throw error;
    }
    return codeOf(error) === 'ENOENT' ? 'missing' : 'forbidden';
  }
}

async function readQemu(): Promise<string> {
  const text = await run(BINARIES[nativeArchitecture()], ['--version'], PROGRAM);
  return text.split('\n')[0] ?? '';
}

/** Without root, the driver `user` filters nothing, so it needs nothing. */
async function missingForUser(): Promise<string[]> {
  const isFiltered = process.getuid?.() === 0;
  return isFiltered && (await findProgram('nft')) === undefined ? ['nft (package nftables)'] : [];
}
