/**
 * `make demo` starts a real control plane, the operator, the HTTP API, this machine as a host, and a VM that serves a page. It logs in to
 * the VM by SSH with a key of its own. `make demo-down` ends them.
 * Root is not needed. State is in `.berth/demo/`; built programs and images are in the user's cache folder.
 */
import { copyFile, mkdir, readFile } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { randomBytes } from 'node:crypto';
import { parseAllDocuments } from 'yaml';
import { hash } from 'bcryptjs';
import { AgentProcess, deleteAllVMs, endMachines } from './cluster/agent.ts';
import { type Cluster, connectCluster, startCluster, stopCluster } from './cluster/index.ts';
import { directoryOf, readState } from './cluster/state.ts';
import { waitFor } from './wait.ts';
import { showWarmStarts } from './warmdemo.ts';
import { type GuestArchitecture, guestImage } from './guest.ts';
import { ensurePrerequisites } from './prerequisites.ts';
import { type Guest, logIn, makeKey } from './login.ts';
import { runCommand } from './command.ts';
import { writeWholeSync } from '../base/files.ts';
import { requestToken, SERVICE_ACCOUNTS } from './cluster/tokens.ts';
import { SYSTEM_NAMESPACE } from '../api/v1alpha1/names.ts';
import { SERVERS } from '../api/v1alpha1/resources.ts';
import { createKey } from '../kube/certificates/certificate.ts';
import { SECRETS } from '../kube/core.ts';
import { bundleConsole } from './bundle.ts';
import { createAuthority, issue } from './cluster/authority.ts';
import { freePort } from './cluster/ports.ts';
import { startProcess } from './cluster/processes.ts';
import { checkTools } from './cluster/toolchain/toolchain.ts';
import { planRedfishEmulator } from './python/install.ts';

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
  await checkTools();
  await ensurePrerequisites({ kind: 'demo', architecture });
  const image = await guestImage(architecture, say, 'demo');
  await down();
  say('starting a control plane, the operator and the HTTP API');
  const operatorConfig = { imageStorage: { folder: true } };
  const cluster = await startCluster({ name: NAME, operator: true, operatorConfig, lasting: true });
  const { url, list, powerUrl } = await startDemoServer(cluster, NAMESPACE);
  say('starting the emulated controller of a Server');
  const power = await addDemoPower(cluster, powerUrl);
  say('making this machine a host');
  await startHost(cluster, architecture, image);
  const guest = await applyVM(cluster);
  await writeShellFiles(cluster, guest);
  const bootSeconds = await running(cluster);
  const { stdout } = await cluster.kubectl(['get', 'vms', '-A', '-o', 'wide']);
  say('logging in');
  const login = await logIn(guest, LOGIN_COMMAND);
  say(
    `\n$ kubectl get vms -A -o wide\n${stdout}\n$ curl ${PAGE}\n${await fetchPage()}\n$ ssh root@${VM} '${LOGIN_COMMAND}'\n${login}`,
  );
  // Nobody has tried it with the arm64 guest of the demo.
  if (architecture === 'amd64') {
    say('saving the VM with its memory, and starting four from it');
    say(`\n${await showWarmStarts(cluster, { namespace: NAMESPACE, vm: VM, bootSeconds })}`);
  }
  say(whatNext(cluster, url, [list, power]));
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

/**
 * Writes files for the user's shell into the folder of the demo: `env` for kubectl and its configuration, whose namespace becomes that of the
 * VM, and `ssh/config` for logins through `kubectl port-forward`. Each start of the guest makes a new host key, so ssh must not keep it.
 */
async function writeShellFiles(cluster: Cluster, { key, user }: Guest): Promise<void> {
  await cluster.kubectl(['config', 'set-context', '--current', `--namespace=${NAMESPACE}`]);
  const environment = [
    `export KUBECONFIG='${cluster.kubeconfig}'`,
    `export PATH="$PATH:${dirname(cluster.kubectlPath)}"`,
  ];
  const host = [
    `Host ${VM}`,
    'HostName 127.0.0.1',
    'Port 2222',
    `User ${user}`,
    `IdentityFile "${key}"`,
    'IdentitiesOnly yes',
    'StrictHostKeyChecking no',
    'UserKnownHostsFile /dev/null',
    'LogLevel ERROR',
  ];
  writeWholeSync(join(cluster.directory, 'env'), `${environment.join('\n')}\n`);
  writeWholeSync(join(dirname(key), 'config'), `${host.join('\n  ')}\n`);
}

/** Resolves when the VM is Ready, with the seconds that it took. If the VM fails, this ends at once with the VM's message. */
async function running(cluster: Cluster): Promise<number> {
  const begun = performance.now();
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
  return (performance.now() - begun) / 1000;
}

async function startHost(cluster: Cluster, architecture: GuestArchitecture, image: string): Promise<void> {
  const shared = join(cluster.directory, 'images');
  await mkdir(shared);
  await copyFile(image, join(shared, 'guest.qcow2'));
  const storageFolder = join(cluster.directory, 'storage');
  await mkdir(storageFolder);
  await AgentProcess.start(cluster, {
    nodeName: 'demo-host',
    config: {
      architecture,
      cpuOvercommit: CPU_OVERCOMMIT,
      images: { sharedRoots: [shared], storageFolder },
      network: { driver: 'user' },
    },
  });
}

async function fetchPage(): Promise<string> {
  return await waitFor('the page of the guest', async () => await (await fetch(PAGE)).text(), {
    deadlineMilliseconds: PAGE_MILLISECONDS,
  });
}

/** Returns commands for the user. `url` is the address of the HTTP API. `calls` are commands that use it and the power API. */
function whatNext(cluster: Cluster, url: string, calls: readonly string[]): string {
  const folder = relative(process.cwd(), cluster.directory);
  return `What to try next. README.md goes on from here.

  . ${folder}/env                         # kubectl, its configuration and the namespace ${NAMESPACE}
  kubectl port-forward pod/${VM} 2222:22 5900:vnc &
  ssh -F ${folder}/ssh/config ${VM}       # exit leaves it
  kubectl attach -it ${VM}                # the serial console: Enter starts a shell, Ctrl+] leaves it
  kubectl describe vm ${VM}               # its conditions and events
  kubectl explain vm.spec
  make cli && dist/berth vm list -o wide    # the same by the command: dist/berth --help
  ${calls.join('\n  ')}
  make demo-down

127.0.0.1:5900 has the screen for a VNC viewer while kubectl port-forward runs.
${url}/console/ in a browser shows the fleet. Sign in with the token in ${folder}/tokens/dev, or in ${folder}/tokens/admin for all namespaces.
${url}/ shows the HTTP API. Authorize there with the same token.
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

/** Validity of the tokens in seconds. The demo may be kept for some weeks. */
const TOKEN_SECONDS = 30 * 24 * 3600;

/**
 * Starts the server. Writes its address (`server.url`), the certificate of its authority (`authority.crt`) and the tokens
 * (`tokens/admin`, `tokens/dev`) into the folder of the demo. Returns a command that lists the VMs, and the address of the power API.
 */
async function startDemoServer(
  cluster: Cluster,
  namespace: string,
): Promise<{ readonly url: string; readonly list: string; readonly powerUrl: string }> {
  await bundleConsole();
  const { url, powerUrl, authority } = await cluster.startServer({ config: { power: { enabled: true } } });
  const path = (name: string) => join(cluster.directory, name);
  await mkdir(path('tokens'), { mode: 0o700 });
  const administrator = ['clusterrolebinding', 'demo-admin', '--clusterrole=cluster-admin'];
  const member = ['rolebinding', 'demo-dev', '--clusterrole=berth-role-dev', `--namespace=${namespace}`];
  writeWholeSync(
    path('tokens/admin'),
    await tokenOf(cluster, { namespace, name: 'demo-admin' }, administrator),
  );
  writeWholeSync(path('tokens/dev'), await tokenOf(cluster, { namespace, name: 'demo-dev' }, member));
  writeWholeSync(path('authority.crt'), authority);
  writeWholeSync(path('server.url'), url);
  const shown = (name: string) => relative(process.cwd(), path(name));
  const header = `-H "Authorization: Bearer $(cat ${shown('tokens/dev')})"`;
  const list = `curl --cacert ${shown('authority.crt')} ${header} ${url}/api/v1/namespaces/${namespace}/vms`;
  return { url, list, powerUrl };
}

/** Makes a ServiceAccount with these rights. Returns a token of it. */
async function tokenOf(
  cluster: Cluster,
  account: { namespace: string; name: string },
  binding: readonly string[],
): Promise<string> {
  await cluster.client().create(SERVICE_ACCOUNTS, { metadata: account });
  const subject = `--serviceaccount=${account.namespace}:${account.name}`;
  await cluster.kubectl(['create', ...binding, subject]);
  return await requestToken(cluster.client(), account, TOKEN_SECONDS);
}

const SERVER = 'rack-1';
/** An address for documentation (RFC 5737). Nothing is sent to it. */
const ADDRESS = '192.0.2.10';
const SYSTEM = '3f5ab8ae-9d0c-4a11-8a6c-0a2b3c4d5e6f';
const CONTROLLER_USER = 'admin';
const USER = 'demo';
/** Length of passwords in random bytes. */
const PASSWORD_BYTES = 12;
/** Cost of bcrypt hashes. It is the cost of `berth server user add`. */
const BCRYPT_COST = 10;
/** Time limit until the power is known. The emulator needs a few seconds to start. */
const READ_MILLISECONDS = 60_000;

/**
 * Starts the emulator, creates its Server, and allows one user to act. Writes the address of the power API (`power.url`) and NAME:PASSWORD
 * of the user (`power.user`) into the folder of the demo. Returns three commands.
 */
async function addDemoPower(cluster: Cluster, url: string): Promise<string> {
  const client = cluster.client();
  const password = randomPassword();
  const controller = await startController(cluster, password);
  const secret = 'rack-1-controller';
  await client.create(SECRETS, {
    metadata: { namespace: SYSTEM_NAMESPACE, name: secret },
    type: 'kubernetes.io/basic-auth',
    data: encoded({ username: CONTROLLER_USER, password }),
  });
  await client.create(SERVERS, {
    metadata: { name: SERVER },
    spec: {
      displayName: 'Rack 1',
      addresses: [ADDRESS],
      type: 'emulated',
      location: 'this machine',
      controller: { redfish: controller, secretName: secret },
    },
  });
  const user = `${USER}:${randomPassword()}`;
  const htpasswd = `${USER}:${await hash(user.slice(USER.length + 1), BCRYPT_COST)}\n`;
  await client.create(SECRETS, {
    metadata: { namespace: SYSTEM_NAMESPACE, name: 'berth-server-users' },
    type: 'Opaque',
    data: encoded({ htpasswd }),
  });
  const path = (name: string) => join(cluster.directory, name);
  writeWholeSync(path('power.url'), url);
  writeWholeSync(path('power.user'), user, 0o600);
  await waitFor(
    `the power of Server ${SERVER}`,
    async () => (await client.get(SERVERS, { name: SERVER })).status?.power === 'On',
    { deadlineMilliseconds: READ_MILLISECONDS },
  );
  const shown = (name: string) => relative(process.cwd(), path(name));
  const curl = `curl --cacert ${shown('authority.crt')} -u "$(cat ${shown('power.user')})" ${url}/core/api/servers`;
  return [curl, `${curl}/${ADDRESS}`, `${curl}/${SERVER}/Reboot`].join('\n  ');
}

async function startController(cluster: Cluster, password: string) {
  const authority = await createAuthority('demo-controllers');
  const key = await createKey();
  const cert = await issue(authority, {
    commonName: SERVER,
    key,
    ipAddresses: ['127.0.0.1'],
    usages: ['server'],
  });
  const port = await freePort();
  const plan = await planRedfishEmulator({
    folder: join(cluster.directory, 'controller'),
    port,
    systems: [{ uuid: SYSTEM, name: SERVER, power: 'On' }],
    certificate: { cert, key: key.pem },
    username: CONTROLLER_USER,
    passwordHash: await hash(password, BCRYPT_COST),
  });
  await startProcess(cluster.directory, plan);
  return { endpoint: `https://127.0.0.1:${port}`, authority: authority.certificate };
}

function randomPassword(): string {
  return randomBytes(PASSWORD_BYTES).toString('base64url');
}

function encoded(data: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(data).map(([key, value]) => [key, Buffer.from(value).toString('base64')]),
  );
}

await runCommand(main);
