/**
 * A host for containers. It has its own processes and mounts, and the network and files of this machine. All its programs end with it, also
 * if the test fails.
 */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { startProcess } from '../../hack/cluster/processes.ts';
import { waitFor } from '../../hack/wait.ts';

/** Returns the reason why this machine cannot run containers, or undefined if it can. */
export function whyNoContainers(): string | undefined {
  if (process.platform !== 'linux') {
    return 'containers of these images need Linux';
  }
  if (process.getuid?.() !== 0) {
    return 'only root can unpack an image and run its containers';
  }
  const folders = [...(process.env['PATH'] ?? '').split(delimiter), '/usr/sbin'];
  return folders.some((folder) => existsSync(join(folder, 'runc'))) ? undefined : 'runc is not installed';
}

export class ContainerHost {
  /** Folder of the cluster, with which the host ends. */
  readonly directory: string;
  /** Process id of the host's first process on this machine. */
  readonly #pid: number;

  private constructor(directory: string, pid: number) {
    this.directory = directory;
    this.#pid = pid;
  }

  static async start(directory: string): Promise<ContainerHost> {
    const { pid } = await startProcess(directory, {
      name: 'host',
      file: 'unshare',
      arguments: ['--pid', '--mount', '--fork', '--mount-proc', '--kill-child', 'sleep', 'infinity'],
    });
    const first = await waitFor('the first process of the host', async () => {
      const children = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8');
      const child = Number.parseInt(children, 10);
      return (await readFile(`/proc/${child}/comm`, 'utf8')).trim() === 'sleep' && child;
    });
    return new ContainerHost(directory, first);
  }

  /** Returns the command that runs a program on the host. */
  command(program: string, ...parameters: string[]): [string, ...string[]] {
    return ['nsenter', `--target=${this.#pid}`, '--pid', '--mount', '--', program, ...parameters];
  }

  /** Runs a program on the host to its end. Rejects with its output if it fails. */
  async run(program: string, ...parameters: string[]): Promise<void> {
    const [file, ...rest] = this.command(program, ...parameters);
    await promisify(execFile)(file, rest);
  }

  /** Returns the path on this machine of a file in the host's `/proc`, which has the host's process ids. */
  proc(...path: string[]): string {
    return join(`/proc/${this.#pid}/root/proc`, ...path);
  }
}
