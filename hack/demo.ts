/**
 * `make demo` starts a real control plane, the operator, the HTTP API, this machine as a host, and a VM that serves a page. It logs in to
 * the VM by SSH with a key of its own. `make demo-down` ends them.
 * Root is not needed. State is in `.berth/demo/`; built programs and images are in the user's cache folder.
 */
import { copyFile, mkdir, readFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { parseAllDocuments } from 'yaml';
import { AgentProcess, deleteAllVMs, endMachines } from './cluster/agent.ts';
import { type Cluster, connectCluster, startCluster, stopCluster } from './cluster/index.ts';
import { directoryOf, readState } from './cluster/state.ts';
import { waitFor } from './wait.ts';
import { type GuestArchitecture, guestImage } from './guest.ts';
import { ensurePrerequisites } from './prerequisites.ts';
import { type Guest, logIn, makeKey } from './login.ts';
import { runCommand } from './command.ts';
import { addDemoPower } from './demopower.ts';
import { startDemoServer } from './demoserver.ts';

const NAME = 'demo';
const NAMESPACE = 'platform-default';
const VM = 'hello';
const EXAMPLE = join(import.meta.dirname, '..', 'examples', 'vm.yaml');
/** Command whose output proves that the login reached the guest. */
const LOGIN_COMMAND = 'hostname; uname -sr';
const PAGE = 'http://127.0.0.1:28080/';
/** Time limit until the VM is Ready. An emulated guest boots in well under a minute on an idle machine; a busy machine needs more. */
const RUNNING_SECONDS = 240;
const PAGE_MILLISECONDS = 60_000;
/** Overcommit of CPUs, so that four small guests can share the CPUs of a laptop. */
const CPU_OVERCOMMIT = 8;

async function up(): Promise<void> {
  const architecture = guestArchitecture();
  await ensurePrerequisites({ kind: 'demo', architecture });
  const image = await guestImage(architecture, say);
  await down();
  say('starting a control plane, the operator and the HTTP API');
  const cluster = await startCluster({ name: NAME, operator: true, lasting: true });
  const { list, powerUrl } = await startDemoServer(cluster, NAMESPACE);
  say('starting the emulated controller of a Server');
  const power = await addDemoPower(cluster, powerUrl);
  say('making this machine a host');
  await startHost(cluster, architecture, image);
  const guest = await applyVM(cluster);
  await running(cluster);
  const page = await fetchPage();
  const table = await cluster.kubectl(['get', 'vms', '-A', '-o', 'wide']);
  say('logging in');
  const login = await logIn(guest, LOGIN_COMMAND);
  process.stdout.write(
    `\n$ kubectl get vms -A -o wide\n${table.stdout}\n$ curl ${PAGE}\n${page}\n$ ssh root@${VM} '${LOGIN_COMMAND}'\n${login}\n${whatNext(cluster, guest, [list, power])}`,
  );
  await cluster.disconnect();
}

/** Applies the example with a new key for root. The keys of a VM cannot be added later. */
async function applyVM(cluster: Cluster): Promise<Guest> {
  say('applying examples/vm.yaml with a key of the demo');
  const key = join(cluster.directory, 'ssh', 'key');
  const publicKey = await makeKey(key);
  const documents = parseAllDocuments(await readFile(EXAMPLE, 'utf8'));
  for (const document of documents.filter((one) => one.get('kind') === 'VM')) {
    document.setIn(['spec', 'sshAuthorizedKeys'], [publicKey]);
  }
  await cluster.kubectl(['apply', '-f', '-'], { input: documents.join('') });
  const { kubectlPath, kubeconfig } = cluster;
  return { kubectlPath, kubeconfig, namespace: NAMESPACE, vm: VM, user: 'root', key };
}

/** Resolves when the VM is Ready. If the VM fails, this ends at once with the VM's message. */
async function running(cluster: Cluster): Promise<void> {
  const deadlineMilliseconds = RUNNING_SECONDS * 1000;
  const path = '{.status.failure.message}|{.status.conditions[?(@.type=="Ready")].status}';
  const outcome = await waitFor(
    `VM ${VM} to be Ready`,
    async () => {
      const { stdout } = await cluster.kubectl(['-n', NAMESPACE, 'get', 'vm', VM, '-o', `jsonpath=${path}`]);
      return stdout.startsWith('|') && !stdout.endsWith('True') ? undefined : stdout;
    },
    { deadlineMilliseconds, intervalMilliseconds: 500 },
  );
  if (!outcome.endsWith('True')) {
    throw new Error(`VM ${VM} failed: ${outcome.split('|')[0]}`);
  }
}

async function startHost(cluster: Cluster, architecture: GuestArchitecture, image: string): Promise<void> {
  const shared = join(cluster.directory, 'images');
  await mkdir(shared);
  await copyFile(image, join(shared, 'guest.qcow2'));
  await AgentProcess.start(cluster, {
    nodeName: 'demo-host',
    config: {
      architecture,
      cpuOvercommit: CPU_OVERCOMMIT,
      images: { sharedRoots: [shared] },
      network: { driver: 'user' },
    },
  });
}

async function fetchPage(): Promise<string> {
  return await waitFor('the page of the guest', async () => await (await fetch(PAGE)).text(), {
    deadlineMilliseconds: PAGE_MILLISECONDS,
  });
}

/** Returns commands for the user. `calls` are commands that use the HTTP API and the power API. */
function whatNext(cluster: Cluster, { key }: Guest, calls: readonly string[]): string {
  const options = '-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null';
  return `What to try next:

  export KUBECONFIG=${cluster.kubeconfig} PATH=$PATH:${join(cluster.kubectlPath, '..')}
  kubectl -n ${NAMESPACE} port-forward pod/${VM} 2222:22 &
  ssh -p 2222 -i ${relative(process.cwd(), key)} ${options} root@127.0.0.1
  kubectl -n ${NAMESPACE} attach -it ${VM}      # the serial console: Enter starts a shell, Ctrl+] leaves it
  kubectl -n ${NAMESPACE} port-forward pod/${VM} 5900:vnc     # the screen, for a VNC viewer
  kubectl -n ${NAMESPACE} logs ${VM}            # the text of the console so far
  kubectl -n ${NAMESPACE} describe vm ${VM}     # its conditions and events
  kubectl -n ${NAMESPACE} patch vm ${VM} --type merge -p '{"spec":{"powerState":"Stopped"}}'
  kubectl explain vm.spec
  make cli && dist/berth vm list -o wide        # the same by the command: dist/berth --help
  ${calls.join('\n  ')}
  make demo-down

`;
}

/**
 * Ends the demo. Machines continue to run when their agent ends, so they are ended first. The VMs are deleted while the cluster answers.
 * Then the remaining processes are killed.
 */
async function down(): Promise<void> {
  const directory = directoryOf(NAME, undefined);
  if (readState(directory) !== undefined) {
    const cluster = await connectCluster(NAME);
    await deleteAllVMs(cluster);
    await cluster.disconnect();
  }
  await endMachines(directory);
  await stopCluster(NAME);
}

/** Returns `ARCH` of the environment, or this machine's own architecture. */
function guestArchitecture(): GuestArchitecture {
  const own = process.arch === 'arm64' ? 'arm64' : 'amd64';
  const wanted = process.env['ARCH'] ?? own;
  if (wanted !== 'amd64' && wanted !== 'arm64') {
    throw new Error(`ARCH: ${JSON.stringify(wanted)} is neither amd64 nor arm64`);
  }
  return wanted;
}

function say(text: string): void {
  process.stdout.write(`${text}\n`);
}

async function main(): Promise<void> {
  const [action] = process.argv.slice(2);
  if (action !== 'up' && action !== 'down') {
    throw new Error('say what to do: up or down');
  }
  await (action === 'up' ? up() : down());
}

await runCommand(main);
