/**
 * Ends or signals all processes of a machine: its main process, and the processes that the main process started. A started process can
 * outlive the main process and can leave its process group. No process can leave the machine's control group.
 */
import { hasCode, undefinedIfSync } from '../../base/errors.ts';
import { pause } from '../../base/time.ts';
import { logsWritten, logWriterPid } from '../console/logwriter.ts';
import type { MachineCgroups } from '../processes/cgroup.ts';
import { identify, isAlive, type ProcessIdentity } from '../processes/process.ts';
import type { MachineFolder } from './driver.ts';

/** Time limit for the end of all processes after SIGKILL. A process that exists 20 s after SIGKILL is stuck in the kernel. */
const KILL_TIMEOUT_MILLISECONDS = 20_000;
const KILL_INTERVAL_MILLISECONDS = 10;
/**
 * Largest number of rounds in which a signal is sent. Each round reaches the processes that were not reached before. One round is not
 * enough, because a process can start another process before it gets the signal.
 */
const ROUNDS = 10;

export class ProcessGroup {
  readonly #folder: MachineFolder;
  readonly #cgroups: MachineCgroups;

  constructor(folder: MachineFolder, cgroups: MachineCgroups) {
    this.#folder = folder;
    this.#cgroups = cgroups;
  }

  /**
   * Ends all processes, even if the main process `main` has already ended. The log writer ends last, so that it stores the last output.
   *
   * @throws Error when the kernel has not ended a process after 20 s.
   */
  async end(main: ProcessIdentity | undefined): Promise<void> {
    const { uid, path } = this.#folder;
    await this.#cgroups.forbidForks(uid);
    const writer = await logWriterPid(path);
    await this.#kill(main, writer);
    await logsWritten(path);
    await this.#kill(main, undefined);
  }

  /** Sends a signal to all processes except the log writer. */
  async signal(main: ProcessIdentity, signal: 'SIGSTOP' | 'SIGCONT'): Promise<void> {
    const writer = await logWriterPid(this.#folder.path);
    const reached = new Set<number>();
    for (let round = 0; round < ROUNDS; round += 1) {
      const pids = (await this.#members(main, writer)).filter((pid) => !reached.has(pid));
      if (pids.length === 0) {
        return;
      }
      for (const pid of pids) {
        send(pid, signal);
        reached.add(pid);
      }
    }
  }

  async #kill(main: ProcessIdentity | undefined, except: number | undefined): Promise<void> {
    const deadline = Date.now() + KILL_TIMEOUT_MILLISECONDS;
    for (;;) {
      const pids = await this.#members(main, except);
      if (pids.length === 0) {
        return;
      }
      if (Date.now() >= deadline) {
        throw new Error(`The processes ${pids.join(', ')} did not end after SIGKILL`);
      }
      pids.forEach((pid) => send(pid, 'SIGKILL'));
      await pause(KILL_INTERVAL_MILLISECONDS);
    }
  }

  /**
   * Returns the ids of the machine's live processes, for `kill`, without the process `except`. The control group can still list a dead
   * process whose parent has not noticed its end. So the function checks each listed process.
   */
  async #members(main: ProcessIdentity | undefined, except: number | undefined): Promise<number[]> {
    const listed = new Set(await this.#cgroups.processes(this.#folder.uid));
    listed.delete(except ?? 0);
    const found: number[] = [];
    for (const pid of listed) {
      if ((await identify(pid)) !== undefined) {
        found.push(pid);
      }
    }
    // Without control groups, `listed` is empty. In this case, `kill` gets the process group of the main process, as a negative number.
    const isOutside = main !== undefined && !listed.has(main.pid) && (await isAlive(main));
    return isOutside ? [...found, -main.pid] : found;
  }
}

function send(pid: number, signal: NodeJS.Signals): void {
  undefinedIfSync(hasCode('ESRCH'), () => process.kill(pid, signal));
}
