/**
 * Measures hand-outs of VMs with real guests: from a claim over the HTTP API to its answer, to the answer of a command by the guest agent, and to
 * the first output of a command over SSH. Also measures a whole \`berth vm run --pool\`, from its start to its end. The VM runs in its pool, is
 * suspended there, or is new because the pool is empty.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { DEV_ROLE, MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import { VM_POOLS, VMS } from '../../api/v1alpha1/resources.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { run } from '../../base/exec.ts';
import { makeExecutable } from '../../hack/cli/executable.ts';
import { ownPlatform } from '../../hack/cli/nodes.ts';
import { AgentProcess, endMachines } from '../../hack/cluster/agent.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { makeKey, sshOptions } from '../../hack/login.ts';
import { waitFor } from '../../hack/wait.ts';
import { COMMAND_CHANNEL, COMMAND_PROTOCOL } from '../../kube/channelprotocol.ts';
import { PODS } from '../../kube/core.ts';
import { pathOf } from '../../kube/objects.ts';
import { createImage, guestFile, shareGuest } from '../fixtures/images.ts';
import { accountToken } from '../support/members.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import { tell } from '../worlds/qemuguest.ts';

const NAMESPACE = 'platform-default';
/** Guests run one at a time, but the agent may admit the next guest before the previous one is gone. */
const CPU_OVERCOMMIT = 8;
const LIMIT = { deadlineMilliseconds: 300_000, intervalMilliseconds: 20 };
/** Ports of a guest by their names in the status of its VM. */
const PORTS = { ssh: 22, page: 80 } as const;

export const STARTS = ['ready', 'suspended', 'cold'] as const;
export type Start = (typeof STARTS)[number];

const POOLS = [
  ['ready', 'Running'],
  ['suspended', 'Suspended'],
  ['cold', 'Running'],
] as const;

/** Milliseconds from the claim, one for each hand-out. */
export interface HandOutTimes {
  /** To the answer of the claim. */
  answered: number[];
  /** To the end of a command that the guest agent has run. */
  agent: number[];
  /** To the first output of a command over SSH. */
  ssh: number[];
  /** From the start of \`berth vm run --pool\` to its end. It claims the VM itself, logs in, runs \`true\` and deletes the VM. */
  whole: number[];
}
export type HandOuts = Record<Start, HandOutTimes>;

/** Hands out `count` VMs for each start and each kind of command, one after another. */
export async function measureHandOuts(count: number): Promise<HandOuts> {
  const guest = await guestFile('amd64');
  const cluster = await startCluster({ name: 'bench-handouts', operator: true });
  try {
    const bench = await prepare(cluster, guest);
    const times = Object.fromEntries(
      STARTS.map((start) => [start, { answered: [], agent: [], ssh: [], whole: [] }]),
    ) as unknown as HandOuts;
    // The first guest brings the image to the host, so it is not counted.
    await bench.handOut('cold', 'ssh');
    for (let run = 0; run < count; run += 1) {
      for (const start of STARTS) {
        for (const command of ['ssh', 'agent'] as const) {
          const { answered, done } = await bench.handOut(start, command);
          times[start].answered.push(answered);
          times[start][command].push(done);
        }
        times[start].whole.push(await bench.runCommand(start));
      }
    }
    await bench.end();
    return times;
  } finally {
    await endMachines(cluster.directory);
    await cluster.stop();
  }
}

async function prepare(cluster: Cluster, guest: string): Promise<Bench> {
  const shared = await shareGuest(cluster, guest);
  await AgentProcess.start(cluster, {
    nodeName: 'host',
    config: { architecture: 'amd64', cpuOvercommit: CPU_OVERCOMMIT, images: { sharedRoots: [shared] } },
  });
  await createImage(cluster, 'guest', { sharedFile: { path: 'guest.qcow2' } });
  const key = join(cluster.directory, 'ssh', 'key');
  const server = await cluster.startServer();
  const token = await accountToken(cluster, { namespace: NAMESPACE, name: 'ci' }, { role: DEV_ROLE });
  const sshAuthorizedKeys = [await makeKey(key)];
  for (const [name, powerState] of POOLS) {
    const spec = {
      image: 'guest',
      cpu: 1,
      memory: '256Mi',
      ports: [':80', ':22'],
      sshAuthorizedKeys,
      powerState,
    };
    await cluster.client().create(VM_POOLS, {
      metadata: { namespace: NAMESPACE, name },
      spec: { replicas: 0, template: { spec: { ...spec, readiness: { type: 'GuestAgent' } } } },
    });
  }
  const folder = join(cluster.directory, 'command');
  await mkdir(folder);
  const { path: berth } = await makeExecutable(ownPlatform(), folder);
  return new Bench(cluster, {
    key,
    berth,
    token,
    api: new HTTPClient(server),
    end: () => server.process.stop(),
  });
}

interface Parts {
  readonly key: string;
  /** Path of the command. */
  readonly berth: string;
  readonly token: string;
  readonly api: HTTPClient;
  readonly end: () => Promise<void>;
}

class Bench {
  readonly #cluster: Cluster;
  readonly #parts: Parts;

  constructor(cluster: Cluster, parts: Parts) {
    this.#cluster = cluster;
    this.#parts = parts;
  }

  async end(): Promise<void> {
    await this.#parts.api.close();
    await this.#parts.end();
  }

  /** Claims one VM, runs a command in it, and deletes it. The pool makes no other VM meanwhile, because its boot would take the processors. */
  async handOut(pool: Start, command: 'ssh' | 'agent'): Promise<{ answered: number; done: number }> {
    if (pool !== 'cold') {
      await this.#fill(pool);
    }
    const began = performance.now();
    const claim = this.#claim(pool);
    const agent = pool === 'cold' ? this.#startAgent('berth.dev/claimed-from=cold') : undefined;
    const name = await claim;
    const answered = performance.now() - began;
    await (command === 'ssh' ? this.#runBySSH(name) : this.#runByAgent(name));
    const done = performance.now() - began;
    await agent;
    await this.#cluster.kubectl(['-n', NAMESPACE, 'delete', 'vm', name]);
    return { answered, done };
  }

  /** Runs a command by \`berth vm run\` in a VM of the pool. Returns the milliseconds from start to end. */
  async runCommand(pool: Start): Promise<number> {
    if (pool !== 'cold') {
      await this.#fill(pool);
    }
    const { berth, key } = this.#parts;
    const began = performance.now();
    const agent = pool === 'cold' ? this.#startAgent('berth.dev/claimed-from=cold') : undefined;
    const { kubeconfig } = this.#cluster;
    const job = ['vm', 'run', '--kubeconfig', kubeconfig, '--pool', pool, '--identity', key, '--', 'true'];
    await run(berth, job, { timeoutMilliseconds: LIMIT.deadlineMilliseconds });
    const done = performance.now() - began;
    await agent;
    return done;
  }

  /** Waits until the pool has its VM, and keeps it from making another one. */
  async #fill(pool: Start): Promise<void> {
    await this.#change(pool, { replicas: 1, keepFreeSlots: null });
    await this.#startAgent(`berth.dev/pool=${pool}`);
    await waitFor(
      `pool ${pool} to be full`,
      async () => {
        const { status } = await this.#cluster.client().get(VM_POOLS, { namespace: NAMESPACE, name: pool });
        return status?.readyReplicas === 1;
      },
      LIMIT,
    );
    await this.#change(pool, { keepFreeSlots: 100_000 });
  }

  async #change(name: string, spec: object): Promise<void> {
    await this.#cluster.client().mergePatch(VM_POOLS, { namespace: NAMESPACE, name }, { spec });
  }

  /** Starts the guest agent of the VM with this label. The test guest starts it only when it is asked to. */
  async #startAgent(labelSelector: string): Promise<void> {
    const port = await waitFor(
      `the page of the VM with ${labelSelector}`,
      async () => {
        const { items } = await this.#cluster.client().list(VMS, { namespace: NAMESPACE, labelSelector });
        const vm = items.find(({ metadata }) => metadata.deletionTimestamp === undefined);
        return vm && portOf(vm, PORTS.page);
      },
      LIMIT,
    );
    await tell(port, 'agent=0');
  }

  async #claim(pool: Start): Promise<string> {
    const { api, token } = this.#parts;
    const path = `/api/v1/namespaces/${NAMESPACE}/vmpools/${pool}/claim`;
    const { status, text, body } = await api.call(path, { method: 'POST', token, body: {} });
    const { name, cold } = body as { name: string; cold: boolean };
    if (status !== 200 || cold !== (pool === 'cold')) {
      throw new Error(`the claim of a ${pool} VM got ${status}: ${text}`);
    }
    return name;
  }

  /** Resolves with the first output of a command. */
  async #runBySSH(name: string): Promise<void> {
    const vm = await this.#cluster.client().get(VMS, { namespace: NAMESPACE, name });
    const options = sshOptions(this.#parts.key, portOf(vm, PORTS.ssh) ?? 0);
    const child = spawn('ssh', [...options, 'root@127.0.0.1', 'echo'], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const ended = once(child, 'close');
    const first = await Promise.race([once(child.stdout, 'data'), ended.then(() => undefined)]);
    if (first === undefined) {
      throw new Error(`ssh has ended without an output of VM ${name}`);
    }
    void ended;
  }

  async #runByAgent(name: string): Promise<void> {
    const { transport } = this.#cluster.client();
    const query = new URLSearchParams({ container: MACHINE_CONTAINER, command: 'true', stdout: 'true' });
    const channels = await transport.channels({
      path: `${pathOf(PODS, { namespace: NAMESPACE, name }, 'exec')}?${query.toString()}`,
      protocol: COMMAND_PROTOCOL,
      numbers: [COMMAND_CHANNEL.stdout, COMMAND_CHANNEL.status],
      signal: AbortSignal.timeout(LIMIT.deadlineMilliseconds),
    });
    channels.channel(COMMAND_CHANNEL.stdout).resume();
    channels.channel(COMMAND_CHANNEL.status).resume();
    await channels.ended;
  }
}

/** Returns the port of the host that leads to this port of the guest. */
function portOf({ status }: VM, guestPort: number): number | undefined {
  return status?.endpoints?.find((endpoint) => endpoint.guestPort === guestPort)?.hostPort;
}
