/** kube-apiserver, etcd, controller-manager and scheduler as plain processes on loopback. */
import { readFileSync } from 'node:fs';
import { Agent, get } from 'node:https';
import { join } from 'node:path';
import { waitFor } from '../support/wait.ts';
import { writeCredentials } from './pki.ts';
import { freePorts } from './ports.ts';
import { isAlive, readRecord, startProcess } from './processes.ts';
import type { Tools } from './toolchain/toolchain.ts';

/** Client-go's defaults (20, 30) would make these two the bottleneck of every burst. */
const CLIENT_RATE = ['--kube-api-qps=2000', '--kube-api-burst=2000'];
/** Where Services get their addresses; nothing routes there. */
const SERVICE_RANGE = '10.96.0.0/16';
/** A cluster is up in 4 s on idle cores; a busy machine takes several times that. */
const READY_MILLISECONDS = 90_000;
/** Holds the message with which a server ends, after the flags that it prints. */
const LAST_WORDS_CHARACTERS = 2_000;
/** One answer on loopback. */
const PROBE_MILLISECONDS = 2_000;

export interface ControlPlaneOptions {
  name: string;
  directory: string;
  tools: Tools;
  /** How long a node may be silent before it counts as lost; Kubernetes' own value is 50. */
  nodeMonitorGracePeriodSeconds?: number | undefined;
}

/** Starts everything, resolves once it is ready. Writes `kubeconfig`, logs and pid files. */
export async function startControlPlane(options: ControlPlaneOptions): Promise<void> {
  const [etcdPort, etcdPeerPort, serverPort] = (await freePorts(3)) as [number, number, number];
  const server = `https://127.0.0.1:${serverPort}`;
  await writeCredentials(options.name, options.directory, server);
  const etcd = etcdArguments(options.directory, etcdPort, etcdPeerPort);
  await startProcess(options.directory, { name: 'etcd', file: options.tools.etcd, arguments: etcd });
  await startProcess(options.directory, {
    name: 'kube-apiserver',
    file: options.tools['kube-apiserver'],
    arguments: serverArguments(options.directory, serverPort, etcdPort),
  });
  await waitUntilReady(options.directory, server);
  for (const name of ['kube-controller-manager', 'kube-scheduler'] as const) {
    await startProcess(options.directory, {
      name,
      file: options.tools[name],
      arguments:
        name === 'kube-scheduler' ? schedulerArguments(options.directory) : controllerArguments(options),
    });
  }
}

/** Resolves when the server's own start-up work is done too: RBAC bootstrap, priority classes. */
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
        if (!(await isAlive(readRecord(directory, 'kube-apiserver')))) return 'ended';
        return (await probe(`${server}/readyz`, agent)) && 'ready';
      },
      { deadlineMilliseconds: READY_MILLISECONDS },
    );
    if (state === 'ended') throw new Error(`kube-apiserver ended: ${lastWords(directory)}`);
  } finally {
    agent.destroy();
  }
}

function lastWords(directory: string): string {
  return readFileSync(join(directory, 'kube-apiserver.log'), 'utf8').slice(-LAST_WORDS_CHARACTERS);
}

function probe(url: string, agent: Agent): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const request = get(url, { agent, timeout: PROBE_MILLISECONDS }, (response) => {
      response.resume();
      response.once('end', () => {
        if (response.statusCode === 200) resolve(true);
        else reject(new Error(`HTTP ${response.statusCode}`));
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
    // What a crash of the machine would lose is thrown away anyway.
    '--unsafe-no-fsync',
    '--quota-backend-bytes=4294967296',
    '--auto-compaction-retention=5m',
    '--log-level=warn',
  ];
}

function serverArguments(directory: string, port: number, etcdPort: number): string[] {
  const pki = join(directory, 'pki');
  return [
    `--etcd-servers=http://127.0.0.1:${etcdPort}`,
    '--bind-address=127.0.0.1',
    '--advertise-address=127.0.0.1',
    `--secure-port=${port}`,
    `--cert-dir=${pki}`,
    `--tls-cert-file=${join(pki, 'kube-apiserver.crt')}`,
    `--tls-private-key-file=${join(pki, 'kube-apiserver.key')}`,
    `--client-ca-file=${join(pki, 'ca.crt')}`,
    `--kubelet-client-certificate=${join(pki, 'kubelet-client.crt')}`,
    `--kubelet-client-key=${join(pki, 'kubelet-client.key')}`,
    `--kubelet-certificate-authority=${join(pki, 'ca.crt')}`,
    '--kubelet-preferred-address-types=InternalIP',
    `--service-account-key-file=${join(pki, 'service-account.pub')}`,
    `--service-account-signing-key-file=${join(pki, 'service-account.key')}`,
    '--service-account-issuer=https://kubernetes.default.svc',
    `--service-cluster-ip-range=${SERVICE_RANGE}`,
    '--authorization-mode=Node,RBAC',
    '--enable-admission-plugins=NodeRestriction',
    '--enable-bootstrap-token-auth',
    '--allow-privileged',
    // A loopback address may not stand in Endpoints.
    '--endpoint-reconciler-type=none',
    '--max-requests-inflight=1600',
    '--max-mutating-requests-inflight=800',
    '--profiling=false',
  ];
}

function controllerArguments(options: ControlPlaneOptions): string[] {
  const pki = join(options.directory, 'pki');
  return [
    `--kubeconfig=${join(pki, 'kube-controller-manager.kubeconfig')}`,
    '--secure-port=0',
    '--leader-elect=false',
    '--controllers=*,tokencleaner,bootstrapsigner',
    '--use-service-account-credentials',
    `--service-account-private-key-file=${join(pki, 'service-account.key')}`,
    `--root-ca-file=${join(pki, 'ca.crt')}`,
    `--cluster-signing-cert-file=${join(pki, 'ca.crt')}`,
    `--cluster-signing-key-file=${join(pki, 'ca.key')}`,
    '--profiling=false',
    ...CLIENT_RATE,
    ...monitorArguments(options.nodeMonitorGracePeriodSeconds),
  ];
}

function monitorArguments(seconds: number | undefined): string[] {
  if (seconds === undefined) return [];
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
