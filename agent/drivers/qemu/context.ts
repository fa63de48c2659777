import type { Logger } from 'pino';
import type { CgroupTree } from '../../machines/cgroup.ts';
import type { OwnRoot } from '../../machines/ownroot.ts';
import type { MachineFolder } from '../driver.ts';

/** What the machines of one driver share. */
export interface MachineContext {
  logger: Logger;
  cgroups: CgroupTree;
  /** Where machines don't share the agent's. */
  ownRoot: OwnRoot | undefined;
  /** QEMU gives up root once everything is opened. */
  isRoot: boolean;
  /** The group that may read images; programs that read a machine's disk have it. */
  readers: number | undefined;
  changed: (uid: string) => void;
  /** Begins to keep the console of a machine that runs. */
  tail: (folder: MachineFolder) => void;
}
