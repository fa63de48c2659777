/**
 * A host for containers: processes and mounts of its own, network and files of this machine. Its end is the end of all
 * that runs on it, whatever becomes of the test.
 */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { startProcess } from '../../hack/cluster/processes.ts';
import { waitFor } from '../../hack/wait.ts';

/** Why there can be none here; undefined when there can. */
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
  /** Folder of the cluster, with whose end the host's comes. */
  readonly directory: string;
  /** Of the host's first process, as this machine counts. */
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

  /** The arguments with which a program runs there. */
  command(program: string, ...parameters: string[]): [string, ...string[]] {
    return ['nsenter', `--target=${this.#pid}`, '--pid', '--mount', '--', program, ...parameters];
  }

  /** Runs a program there to its end; rejects with what it wrote. */
  async run(program: string, ...parameters: string[]): Promise<void> {
    const [file, ...rest] = this.command(program, ...parameters);
    await promisify(execFile)(file, rest);
  }

  /** Path from here of a file of its `/proc`: its processes are counted there. */
  proc(...path: string[]): string {
    return join(`/proc/${this.#pid}/root/proc`, ...path);
  }
}
