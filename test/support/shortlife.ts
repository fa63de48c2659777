/** The command `berth` with VMs that soon end if nobody prolongs their lives. It also tells the process that holds the last VM. */
import { chmod, mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { BerthCommand } from '../wires/berth.ts';

/** Life in seconds of a VM that nobody prolongs. */
const LIFE_SECONDS = 20;
/** A VM is gone so much later than the end of its life, in milliseconds: the operator notices, and the host ends the machine. */
const LATE_MILLISECONDS = 60_000;

/** Time limit until a VM is gone that nobody prolongs. */
export const UNTIL_GONE = { deadlineMilliseconds: LIFE_SECONDS * 1_000 + LATE_MILLISECONDS };

export class ShortLife {
  /** Environment of a shell in which `berth` is this command. */
  readonly environment: NodeJS.ProcessEnv;
  readonly #pidFile: string;

  private constructor(environment: NodeJS.ProcessEnv, pidFile: string) {
    this.environment = environment;
    this.#pidFile = pidFile;
  }

  /** Writes the command into a folder below `folder`. */
  static async make(command: BerthCommand, folder: string): Promise<ShortLife> {
    const [installed, bin, pidFile] = [command.installed(), join(folder, 'bin'), join(folder, 'pid')];
    const script = `#!/bin/sh
noun=$1 verb=$2; shift 2
echo $$ >${pidFile}
exec ${command.expected([]).join(' ')} "$noun" "$verb" --life ${LIFE_SECONDS}s "$@"
`;
    await mkdir(bin);
    await writeFile(join(bin, 'berth'), script);
    await chmod(join(bin, 'berth'), 0o755);
    return new ShortLife({ ...installed, PATH: `${bin}:${installed['PATH']}`, HOME: folder }, pidFile);
  }

  /** Kills the command that was started last. */
  async killLast(): Promise<void> {
    process.kill(Number(await readFile(this.#pidFile, 'utf8')), 'SIGKILL');
  }
}
