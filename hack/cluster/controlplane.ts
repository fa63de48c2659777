/**
 * Runs kube-apiserver, etcd, controller-manager and scheduler on loopback: as plain processes, or each in a container. One authority signs
 * their certificates.
 */
import { readFileSync, writeFileSync, mkdirSync } from 'node:fs';
import { Agent, get } from 'node:https';
import { join } from 'node:path';
import { waitFor } from '../wait.ts';
import { launch } from './providers/provider.ts';
import { freePorts } from './ports.ts';
import { isAlive, readRecord } from './processes.ts';
import type { Tools } from './toolchain/toolchain.ts';
import { recordingArguments } from './usedrights.ts';
import { generateKeyPairSync } from 'node:crypto';
import { createKey, type CertificateSubject } from '../../kube/certificates/certificate.ts';
import { type Authority, createAuthority, issue } from './authority.ts';
import { type KeyAndCertificate, writeKubeconfig } from './kubeconfig.ts';

/**
 * Rate limits of controller-manager and scheduler. With client-go's defaults (20 and 30), these programs would need much longer for a large
 * number of Pods.
 */
const CLIENT_RATE = ['--kube-api-qps=2000', '--kube-api-burst=2000'];
/**
 * Growth of the heap, in per cent, until Go collects garbage. With Go's default of 100, the collector takes a quarter of the API server's
 * CPU time. The larger value takes 140 MB more memory for each cluster.
 */
const ENVIRONMENT = { GOGC: '400' };
/** Range of the addresses of Services. Nothing routes to it. */
const SERVICE_RANGE = '10.96.0.0/16';
/** Time limit until the cluster is ready. It takes 4 s on idle cores, and several times that on a busy machine. */
const READY_MILLISECONDS = 90_000;
/**
 * Number of characters from the end of the log in an error message. They contain the reason why the server ended. The log begins with the
 * printed flags.
 */
const LOG_TAIL_CHARACTERS = 2_000;
/** Time limit of one answer on loopback. */
const PROBE_MILLISECONDS = 2_000;

/** File in the cluster's folder. Each line is a JSON object of the group audit.k8s.io. */
export const AUDIT_LOG = 'audit.log';
/** Audit policy. It leaves out reviews (for example TokenReviews), because they store nothing. */
const AUDIT_POLICY = {
  apiVersion: 'audit.k8s.io/v1',
  kind: 'Policy',
  omitStages: ['RequestReceived', 'ResponseStarted'],
  rules: [
    { level: 'None', resources: [{ group: 'authentication.k8s.io' }, { group: 'authorization.k8s.io' }] },
    { level: 'Request', verbs: ['create', 'update', 'patch', 'delete', 'deletecollection'] },
    { level: 'None' },
  ],
};

interface ControlPlaneOptions {
  name: string;
  directory: string;
  tools: Tools;
  /** Time without a report of a node after which the node counts as lost. The default of Kubernetes is 50 s. */
  nodeMonitorGracePeriodSeconds?: number | undefined;
  /** Longest lifetime of a service account's token in seconds, at least 3600. By default, there is no such limit. */
  accountTokenSeconds?: number | undefined;
  /** Whether every write is recorded with its user in {@link AUDIT_LOG}. */
  audit?: boolean | undefined;
  /** Text of the file with the identity providers of users. If absent, the API server accepts no ID tokens. */
  authentication?: string | undefined;
  /** Text of the file with the configuration of admission plug-ins. If absent, each plug-in has its defaults. */
  admission?: string | undefined;
  /** Image that contains the programs as `/NAME`. When absent, the programs are plain processes. */
  image?: string | undefined;
  /** Network that nodes can reach. By default, the programs listen only on loopback. */
  network?: ControlPlaneNetwork | undefined;
}

interface ControlPlaneNetwork {
  /** Name of the namespace in `ip netns`. */
  namespace: string;
  /** Address of the API server in that namespace. The server listens on loopback too. */
  address: string;
  nodes: readonly NodeIdentity[];
  /** Makes a loopback port of that namespace reachable in this namespace, with the same number. */
  expose: (port: number) => Promise<void>;
}

/** Starts all programs and resolves once they are ready. Writes `kubeconfig`, logs and pid files. */
export async function startControlPlane(options: ControlPlaneOptions): Promise<void> {
  const [etcdPort, etcdPeerPort, serverPort] = (await freePorts(3)) as [number, number, number];
  const server = `https://127.0.0.1:${serverPort}`;
  const { network } = options;
  await writeCredentials(options.name, options.directory, { server, ...network });
  const start = async (name: keyof Tools, parameters: string[]): Promise<void> => {
    const inside = network === undefined ? [] : ['nsenter', `--net=/run/netns/${network.namespace}`];
    const program = options.image === undefined ? options.tools[name] : `/${name}`;
    const [file = '', ...rest] = [...inside, program, ...parameters];
    const plan = { name, file, arguments: rest, environment: ENVIRONMENT, image: options.image };
    await launch(options.directory, plan);
  };
  await start('etcd', etcdArguments(options.directory, etcdPort, etcdPeerPort));
  await start('kube-apiserver', serverArguments(options, serverPort, etcdPort));
  await network?.expose(serverPort);
  await waitUntilReady(options.directory, server);
  await start('kube-controller-manager', controllerArguments(options));
  await start('kube-scheduler', schedulerArguments(options.directory));
}

/** Resolves when the server is ready, after its own start-up work: RBAC bootstrap and priority classes. */
export async function waitUntilReady(directory: string, server: string): Promise<void> {
  const agent = new Agent({
    ca: readFileSync(join(directory, 'pki', 'ca.crt')),
    cert: readFileSync(join(directory, 'pki', 'admin.crt')),
    key: readFileSync(join(directory, 'pki', 'admin.key')),
  });
  try {
    const state = await waitFor(
      'kube-apiserver to be ready (see its log)',
      async () => {
        if (!(await isAlive(readRecord(directory, 'kube-apiserver')))) {
          return 'ended';
        }
        return (await probe(`${server}/readyz`, agent)) && 'ready';
      },
      { deadlineMilliseconds: READY_MILLISECONDS },
    );
    if (state === 'ended') {
      throw new Error(`kube-apiserver ended: ${readLogTail(directory)}`);
    }
  } finally {
    agent.destroy();
  }
}

function readLogTail(directory: string): string {
  return readFileSync(join(directory, 'kube-apiserver.log'), 'utf8').slice(-LOG_TAIL_CHARACTERS);
}

function probe(url: string, agent: Agent): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const request = get(url, { agent, timeout: PROBE_MILLISECONDS }, (response) => {
      response.resume();
      response.once('end', () => {
        if (response.statusCode === 200) {
          resolve(true);
        } else {
          reject(new Error(`HTTP ${response.statusCode}`));
        }
      });
      response.once('error', reject);
    });
    request.once('timeout', () => request.destroy(new Error('no answer')));
    request.once('error', reject);
  });
}

function etcdArguments(directory: string, port: number, peerPort: number): string[] {
  const client = `http://127.0.0.1:${port}`;
  const peer = `http://127.0.0.1:${peerPort}`;
  return [
    `--data-dir=${join(directory, 'etcd')}`,
    `--listen-client-urls=${client}`,
    `--advertise-client-urls=${client}`,
    `--listen-peer-urls=${peer}`,
    `--initial-advertise-peer-urls=${peer}`,
    `--initial-cluster=default=${peer}`,
    // Data need not survive a crash of the machine, because the cluster is temporary.
    '--unsafe-no-fsync',
    '--quota-backend-bytes=4294967296',
    '--auto-compaction-retention=5m',
    '--log-level=warn',
  ];
}

function serverArguments(options: ControlPlaneOptions, port: number, etcdPort: number): string[] {
  const pki = join(options.directory, 'pki');
  return [
    `--etcd-servers=http://127.0.0.1:${etcdPort}`,
    ...addressArguments(options.network),
    `--secure-port=${port}`,
    `--cert-dir=${pki}`,
    `--tls-cert-file=${join(pki, 'kube-apiserver.crt')}`,
    `--tls-private-key-file=${join(pki, 'kube-apiserver.key')}`,
    `--client-ca-file=${join(pki, 'ca.crt')}`,
    `--kubelet-client-certificate=${join(pki, 'kubelet-client.crt')}`,
    `--kubelet-client-key=${join(pki, 'kubelet-client.key')}`,
    `--kubelet-certificate-authority=${join(pki, 'ca.crt')}`,
    '--kubelet-preferred-address-types=InternalIP',
    ...aggregationArguments(pki),
    `--service-account-key-file=${join(pki, 'service-account.pub')}`,
    `--service-account-signing-key-file=${join(pki, 'service-account.key')}`,
    '--service-account-issuer=https://kubernetes.default.svc',
    `--service-cluster-ip-range=${SERVICE_RANGE}`,
    '--authorization-mode=Node,RBAC',
    '--enable-admission-plugins=NodeRestriction',
    '--enable-bootstrap-token-auth',
    '--allow-privileged',
    '--max-requests-inflight=1600',
    '--max-mutating-requests-inflight=800',
    '--profiling=false',
    ...tokenArguments(options),
    ...auditArguments(options),
    ...fileArguments(options, 'authentication', 'authentication-config'),
    ...fileArguments(options, 'admission', 'admission-control-config-file'),
  ];
}

/** Lets aggregated API servers, such as metrics-server, trust the names of users in the API server's requests. */
function aggregationArguments(pki: string): string[] {
  return [
    `--proxy-client-cert-file=${join(pki, `${FRONT_PROXY}.crt`)}`,
    `--proxy-client-key-file=${join(pki, `${FRONT_PROXY}.key`)}`,
    `--requestheader-client-ca-file=${join(pki, 'ca.crt')}`,
    `--requestheader-allowed-names=${FRONT_PROXY}`,
    '--requestheader-username-headers=X-Remote-User',
    '--requestheader-group-headers=X-Remote-Group',
    '--requestheader-extra-headers-prefix=X-Remote-Extra-',
  ];
}

/** Writes a file with the text of an option into the cluster's folder. Returns the flag that names this file. */
function fileArguments(
  options: ControlPlaneOptions,
  name: 'authentication' | 'admission',
  flag: string,
): string[] {
  const text = options[name];
  if (text === undefined) {
    return [];
  }
  const file = join(options.directory, `${name}.yaml`);
  writeFileSync(file, text);
  return [`--${flag}=${file}`];
}

function tokenArguments({ accountTokenSeconds: seconds }: ControlPlaneOptions): string[] {
  return seconds === undefined ? [] : [`--service-account-max-token-expiration=${seconds}s`];
}

function auditArguments({ directory, audit = false }: ControlPlaneOptions): string[] {
  // The API server has one audit policy. A cluster whose test reads the writes does not record rights.
  if (!audit) {
    return recordingArguments(directory);
  }
  const policy = join(directory, 'audit-policy.json');
  writeFileSync(policy, JSON.stringify(AUDIT_POLICY));
  return [`--audit-policy-file=${policy}`, `--audit-log-path=${join(directory, AUDIT_LOG)}`];
}

function addressArguments(network: ControlPlaneNetwork | undefined): string[] {
  if (network !== undefined) {
    return ['--bind-address=0.0.0.0', `--advertise-address=${network.address}`];
  }
  // The API server refuses loopback addresses in Endpoints.
  return ['--bind-address=127.0.0.1', '--advertise-address=127.0.0.1', '--endpoint-reconciler-type=none'];
}

function controllerArguments(options: ControlPlaneOptions): string[] {
  const pki = join(options.directory, 'pki');
  return [
    `--kubeconfig=${join(pki, 'kube-controller-manager.kubeconfig')}`,
    '--secure-port=0',
    '--leader-elect=false',
    '--controllers=*,tokencleaner,bootstrapsigner',
    '--use-service-account-credentials',
    // The quota controller then soon learns of the kinds of CRDs. A quota that it sees before is counted only after five minutes.
    '--resource-quota-sync-period=5s',
    `--service-account-private-key-file=${join(pki, 'service-account.key')}`,
    `--root-ca-file=${join(pki, 'ca.crt')}`,
    `--cluster-signing-cert-file=${join(pki, 'ca.crt')}`,
    `--cluster-signing-key-file=${join(pki, 'ca.key')}`,
    '--profiling=false',
    // By default, an autoscaler looks at its metric every 15 s.
    '--horizontal-pod-autoscaler-sync-period=1s',
    ...CLIENT_RATE,
    ...monitorArguments(options.nodeMonitorGracePeriodSeconds),
  ];
}

function monitorArguments(seconds: number | undefined): string[] {
  if (seconds === undefined) {
    return [];
  }
  return [`--node-monitor-grace-period=${seconds}s`, '--node-monitor-period=1s'];
}

function schedulerArguments(directory: string): string[] {
  return [
    `--kubeconfig=${join(directory, 'pki', 'kube-scheduler.kubeconfig')}`,
    '--secure-port=0',
    '--leader-elect=false',
    '--profiling=false',
    ...CLIENT_RATE,
  ];
}

/** Users of the components. Each has a kubeconfig in `pki/`. */
const COMPONENT_USERS = {
  'kube-controller-manager': 'system:kube-controller-manager',
  'kube-scheduler': 'system:kube-scheduler',
} as const;

/** Name of the API server's client certificate for aggregated API servers, and of its files. */
const FRONT_PROXY = 'front-proxy-client';

/** Name and address of a node with a kubelet. */
interface NodeIdentity {
  name: string;
  address: string;
}

interface CredentialsOptions {
  /** Address of the API server in kubeconfigs. */
  server: string;
  /** Another address of the API server, for its certificate. */
  address?: string;
  nodes?: readonly NodeIdentity[];
}

/** Writes keys and certificates to `DIRECTORY/pki`, and the administrator's kubeconfig to `DIRECTORY/kubeconfig`. */
async function writeCredentials(
  name: string,
  directory: string,
  { server, address, nodes = [] }: CredentialsOptions,
): Promise<void> {
  const pki = join(directory, 'pki');
  mkdirSync(pki, { recursive: true, mode: 0o700 });
  const authority = await createAuthority(`berth-${name}`);
  writePair(pki, 'ca', { key: authority.key.pem, certificate: authority.certificate });
  writeServiceAccountKeys(pki);
  writePair(pki, 'kube-apiserver', await apiServerPair(authority, address));
  writePair(pki, 'kubelet-client', await clientPair(authority, 'kube-apiserver-kubelet-client'));
  // The API server has this certificate when it passes requests to an aggregated API server.
  writePair(pki, FRONT_PROXY, await clientPair(authority, FRONT_PROXY));
  const admin = await clientPair(authority, 'berth-admin', ['system:masters']);
  writePair(pki, 'admin', admin);
  const content = { server, authority: authority.certificate };
  writeKubeconfig(join(directory, 'kubeconfig'), { ...content, user: { kind: 'certificate', pair: admin } });
  const kubeconfig = (component: string, pair: KeyAndCertificate, from = server): void =>
    writeKubeconfig(join(pki, `${component}.kubeconfig`), {
      ...content,
      server: from,
      user: { kind: 'certificate', pair },
    });
  for (const [component, user] of Object.entries(COMPONENT_USERS)) {
    kubeconfig(component, await clientPair(authority, user));
  }
  if (address === undefined) {
    return;
  }
  const beyond = `https://${address}:${new URL(server).port}`;
  kubeconfig('kube-proxy', await clientPair(authority, 'system:kube-proxy'), beyond);
  for (const node of nodes) {
    writePair(
      pki,
      node.name,
      await serverPair(authority, { commonName: node.name, ipAddresses: [node.address] }),
    );
    kubeconfig(node.name, await clientPair(authority, `system:node:${node.name}`, ['system:nodes']), beyond);
  }
}

function apiServerPair(authority: Authority, address: string | undefined): Promise<KeyAndCertificate> {
  return serverPair(authority, {
    commonName: 'kube-apiserver',
    dnsNames: ['localhost', 'kubernetes', 'kubernetes.default', 'kubernetes.default.svc'],
    ipAddresses: ['127.0.0.1', '10.96.0.1', ...(address === undefined ? [] : [address])],
  });
}

async function serverPair(authority: Authority, subject: CertificateSubject): Promise<KeyAndCertificate> {
  const key = await createKey();
  const certificate = await issue(authority, { ...subject, key, usages: ['server'] });
  return { key: key.pem, certificate };
}

async function clientPair(
  authority: Authority,
  commonName: string,
  organizations: string[] = [],
): Promise<KeyAndCertificate> {
  const key = await createKey();
  const certificate = await issue(authority, { key, commonName, organizations, usages: ['client'] });
  return { key: key.pem, certificate };
}

/** Writes the key pair that signs ServiceAccount tokens. */
function writeServiceAccountKeys(directory: string): void {
  const keys = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const secret = keys.privateKey.export({ type: 'pkcs8', format: 'pem' }).toString();
  writeSecret(join(directory, 'service-account.key'), secret);
  const open = keys.publicKey.export({ type: 'spki', format: 'pem' }).toString();
  writeSecret(join(directory, 'service-account.pub'), open);
}

function writePair(directory: string, name: string, pair: KeyAndCertificate): void {
  writeSecret(join(directory, `${name}.key`), pair.key);
  writeSecret(join(directory, `${name}.crt`), pair.certificate);
}

function writeSecret(path: string, text: string): void {
  writeFileSync(path, text.endsWith('\n') ? text : `${text}\n`, { mode: 0o600 });
}
