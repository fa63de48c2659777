/**
 * Runs a node like a separate machine. It has its own processes, mounts, network and control group, but this machine's programs.
 * containerd, kubelet and kube-proxy run on the node. When the node ends, all its processes end.
 */
import { execFile } from 'node:child_process';
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { NODES } from '../../../kube/core.ts';
import { waitFor } from '../../wait.ts';
import { type ProcessRecord, startProcess } from '../processes.ts';
import type { NodeTools } from '../toolchain/toolchain.ts';
import type { Cluster } from '../cluster.ts';
import { CONTAINERD_SOCKET, writeConfiguration } from './configuration.ts';
import type { NetworkAddress } from './network.ts';

const NODE_SCRIPT = join(import.meta.dirname, 'node.sh');
const GROUP_SCRIPT = join(import.meta.dirname, 'group.sh');
/** Time limit until the Node is Ready. containerd and kubelet need seconds, and several times that on a busy machine. */
const READY_MILLISECONDS = 120_000;
/** Time limit of an import. The agent's image has 400 MB, and a busy machine's disk is slow. */
const IMPORT_MILLISECONDS = 300_000;

export class ClusterNode {
  readonly name: string;
  readonly address: string;
  readonly namespace: string;
  /** Folder with the node's logs, its configuration files, and its `/var/lib`. */
  readonly directory: string;
  /** Id of the node's first process, in this machine's own process namespace. */
  readonly #pid: number;

  private constructor(address: NetworkAddress, directory: string, pid: number) {
    this.name = address.name;
    this.address = address.address;
    this.namespace = address.namespace;
    this.directory = directory;
    this.#pid = pid;
  }

  /** Starts the node and resolves when its Node is Ready. */
  static async start(cluster: Cluster, address: NetworkAddress, tools: NodeTools): Promise<ClusterNode> {
    const directory = join(cluster.directory, address.name);
    const pki = join(cluster.directory, 'pki');
    await mkdir(directory, { recursive: true });
    writeConfiguration(directory, address, pki);
    const namespaces = ['--pid', '--mount', '--uts', '--cgroup', '--fork', '--mount-proc', '--kill-child'];
    const first = ['unshare', ...namespaces, 'sh', NODE_SCRIPT, address.namespace, address.name, directory];
    const machine = await startProcess(cluster.directory, {
      name: address.name,
      file: 'nsenter',
      arguments: [`--net=/run/netns/${address.namespace}`, 'sh', GROUP_SCRIPT, address.namespace, ...first],
    });
    const node = new ClusterNode(address, directory, await firstProcess(machine));
    await node.#startPrograms(cluster, pki, tools);
    return node;
  }

  /** Returns the arguments that run a program of this machine on the node. */
  command(program: string, ...parameters: string[]): [string, ...string[]] {
    const namespaces = ['--pid', '--mount', '--net', '--uts', '--cgroup'];
    const enter = ['nsenter', `--target=${this.#pid}`, ...namespaces, '--'];
    return ['sh', GROUP_SCRIPT, this.namespace, ...enter, program, ...parameters];
  }

  /** Runs a program on the node and resolves with its output; rejects with the program's output when it fails. */
  async run(program: string, ...parameters: string[]): Promise<string> {
    const [file, ...rest] = this.command(program, ...parameters);
    return (await promisify(execFile)(file, rest, { timeout: IMPORT_MILLISECONDS })).stdout;
  }

  /** Imports images from an archive, instead of a pull from a registry. */
  async importImages(archive: string): Promise<void> {
    await this.run(
      'ctr',
      '--namespace',
      'k8s.io',
      '--address',
      CONTAINERD_SOCKET,
      'images',
      'import',
      archive,
    );
  }

  async #startPrograms(cluster: Cluster, pki: string, tools: NodeTools): Promise<void> {
    const start = async (name: string, program: string, ...parameters: string[]): Promise<void> => {
      const [file, ...rest] = this.command(program, ...parameters);
      await startProcess(cluster.directory, { name: `${this.name}-${name}`, file, arguments: rest });
    };
    await start('containerd', 'containerd', '--config', join(this.directory, 'containerd.toml'));
    await waitFor('containerd to answer', () => this.run('ctr', '--address', CONTAINERD_SOCKET, 'version'), {
      deadlineMilliseconds: READY_MILLISECONDS,
    });
    await start(
      'kubelet',
      tools.kubelet,
      `--config=${join(this.directory, 'kubelet.yaml')}`,
      `--kubeconfig=${join(pki, `${this.name}.kubeconfig`)}`,
      `--hostname-override=${this.name}`,
      `--node-ip=${this.address}`,
    );
    await start('kube-proxy', tools['kube-proxy'], `--config=${join(this.directory, 'kube-proxy.yaml')}`);
    await waitFor(
      `node ${this.name} to be Ready (see ${this.name}-kubelet.log)`,
      async () => {
        const { status } = await cluster.client().get(NODES, { name: this.name });
        return status?.conditions?.some((one) => one.type === 'Ready' && one.status === 'True');
      },
      { deadlineMilliseconds: READY_MILLISECONDS },
    );
  }
}

/** Resolves with the process id of `unshare`'s child, once the child has set the node up. */
async function firstProcess({ pid, name }: ProcessRecord): Promise<number> {
  return await waitFor(`the first process of ${name}`, async () => {
    const children = await readFile(`/proc/${pid}/task/${pid}/children`, 'utf8');
    const child = Number.parseInt(children, 10);
    return (await readFile(`/proc/${child}/cmdline`, 'utf8')).includes('node-is-up') && child;
  });
}
