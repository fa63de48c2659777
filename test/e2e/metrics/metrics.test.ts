/** The operator's metrics as a scraper on another machine gets them: default port, TLS, tokens and values, in network namespaces. */
import { execFile } from 'node:child_process';
import { X509Certificate } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { stringify } from 'yaml';
import type { Ref } from '../../../kube/objects.ts';
import { type Cluster, startCluster } from '../../../hack/cluster/index.ts';
import { isAlive, type ProcessRecord, startProcess, stopProcess } from '../../../hack/cluster/processes.ts';
import { ActingHost } from '../../worlds/actinghost.ts';
import { allowMetrics } from '../../support/operatorlog.ts';
import { Relay } from '../../../hack/cluster/relay.ts';
import { VMs } from '../../fixtures/vms.ts';
import { waitFor } from '../../../hack/wait.ts';
import { HOST_ADDRESS, NatWorld, whyNotHere } from '../../worlds/nat.ts';
import { unless } from '../../support/unless.ts';

/** A name in the operator's own certificate by default. */
const NAME = 'berth-operator.berth-system.svc';
const URL_OF_METRICS = `https://${NAME}/metrics`;
/** Lifetime of the certificate. It is renewed after two thirds. The new one is served 20 s after the start, at the second check. */
const CERTIFICATE_SECONDS = 29;
/** Time limit: three checks, and more for a busy machine. */
const RENEWED = { deadlineMilliseconds: 40_000, intervalMilliseconds: 250 };
/** Time limit. Node.js loads the sources in 2 s, and on a busy machine in several times that. */
const READY = { deadlineMilliseconds: 60_000 };
const CURL_SECONDS = 10;

const run = promisify(execFile);
const missing = whyNotHere();

interface Answer {
  status: number;
  text: string;
  /** The served certificate as PEM. */
  certificate: string;
}

describe('metrics of the operator, from another machine', unless(missing), () => {
  const parts = new AsyncDisposableStack();
  let net: NatWorld;
  let cluster: Cluster;
  let operator: ProcessRecord;
  let vms: VMs;
  let reader: string;

  beforeAll(async () => {
    net = parts.use(await NatWorld.make('metr'));
    cluster = parts.adopt(await startCluster({ name: `metrics-${process.pid}` }), (one) => one.stop());
    const port = Number(new URL(cluster.server).port);
    parts.use(await Relay.open({ namespace: net.host, direction: 'in', port, directory: net.directory }));
    operator = await startOperator();
    parts.defer(() => stopProcess(cluster.directory, operator));
    vms = new VMs(cluster);
    await allowMetrics(cluster);
    reader = await tokenOf('metrics-reader');
    await waitFor('the operator to serve', () => ask(['--insecure']), READY);
  });

  afterAll(async () => {
    await parts.disposeAsync();
  });

  /** Starts the operator with its default addresses, which are free in a namespace of its own. */
  async function startOperator(): Promise<ProcessRecord> {
    const config = join(cluster.directory, 'operator.yaml');
    await writeFile(config, stringify({ metrics: { certificateLifetimeSeconds: CERTIFICATE_SECONDS } }));
    const main = join(import.meta.dirname, '..', '..', '..', 'operator', 'main.ts');
    const program = [process.execPath, main, '--config', config, '--kubeconfig', cluster.operatorKubeconfig];
    const inside = [`--net=/run/netns/${net.host}`, ...program];
    return await startProcess(cluster.directory, { name: 'operator', file: 'nsenter', arguments: inside });
  }

  async function tokenOf(account: string): Promise<string> {
    return (await cluster.kubectl(['create', 'token', account, '-n', 'berth-system'])).stdout.trim();
  }

  /** Asks from the other side of the link, as users do. curl names the operator in its certificate. */
  async function ask(options: readonly string[]): Promise<Answer> {
    const write = ['--write-out', '\n%{http_code}\n%{certs}'];
    const to = [
      '--resolve',
      `${NAME}:443:${HOST_ADDRESS}`,
      '--max-time',
      String(CURL_SECONDS),
      URL_OF_METRICS,
    ];
    const curl = ['curl', '--silent', '--show-error', ...write, ...options, ...to];
    const { stdout } = await run('nsenter', [`--net=/run/netns/${net.world}`, ...curl]);
    const [, text = '', status, certs = ''] = /^([^]*)\n(\d{3})\n([^]*)$/.exec(stdout) ?? [];
    const begin = certs.indexOf('-----BEGIN');
    return { status: Number(status), text, certificate: certs.slice(begin).trim() };
  }

  async function askTrusting(pem: string, ...options: string[]): Promise<Answer> {
    const file = join(net.directory, 'operator.crt');
    await writeFile(file, pem);
    return await ask(['--cacert', file, ...options]);
  }

  /** Asks with trust in the served certificate. If the certificate was replaced in between, asks for the next one. */
  function askSafely(...options: string[]): Promise<Answer> {
    return waitFor(
      'an answer from who has the certificate',
      async () => await askTrusting((await ask(['--insecure'])).certificate, ...options),
    );
  }

  async function scrape(): Promise<string> {
    const { status, text } = await ask(['--insecure', '--oauth2-bearer', reader]);
    expect(status).toBe(200);
    return text;
  }

  async function shows(...lines: string[]): Promise<void> {
    await waitFor(`metrics to show ${lines.join(', ')}`, async () => {
      const shown = (await scrape()).split('\n');
      const absent = lines.filter((line) => !shown.includes(line));
      if (absent.length > 0) {
        throw new Error(`not there: ${absent.join(', ')}`);
      }
      return true;
    });
  }

  test('answers 401 without a valid token, 403 without the right, and 200 with it, by a certificate for its name', async () => {
    expect(await askSafely()).toMatchObject({ status: 401, text: 'Unauthorized' });
    expect(await askSafely('--oauth2-bearer', 'forged')).toMatchObject({ status: 401 });
    await cluster.kubectl(['create', 'serviceaccount', 'stranger', '-n', 'berth-system']);
    const stranger = await tokenOf('stranger');
    const refused = await askSafely('--oauth2-bearer', stranger);
    expect(refused).toMatchObject({ status: 403, text: 'Forbidden' });
    const answer = await askSafely('--oauth2-bearer', reader);
    expect(answer.status).toBe(200);
    expect(answer.text).toContain('# TYPE berth_pending_vms gauge');
  });

  test('have waiting VMs, started VMs with their times, failures with reasons, and values of the runtime', async () => {
    const host = await ActingHost.join(cluster.client(), 'acting');
    parts.defer(() => host.silence());
    const of = `vm_namespace="${vms.namespace}"`;
    const oldest = `berth_oldest_pending_vm_seconds{${of}}`;
    await shows(`berth_pending_vms{${of}} 0`, `${oldest} 0`);
    await vms.create('waits', { cpu: 200 });
    await vms.createMany(['runs', 'breaks']);
    const [runs, breaks] = ['runs', 'breaks'].map((name) => ({ namespace: vms.namespace, name })) as [
      Ref,
      Ref,
    ];
    await Promise.all([runs, breaks].map((one) => host.waitForPod(one)));
    await shows(`berth_pending_vms{${of}} 3`);
    await host.run(runs);
    await host.fail(breaks, 'StartFailed', 'no such disk');
    const transition = 'berth_vm_phase_transition_seconds';
    await shows(
      `berth_pending_vms{${of}} 1`,
      `${transition}_count{${of},phase="Running"} 1`,
      `${transition}_bucket{le="+Inf",${of},phase="Running"} 1`,
      `${transition}_count{${of},phase="Failed"} 1`,
      `berth_vm_deployments_failed_total{${of},reason="StartFailed"} 1`,
      'leader_election_master_status{name="berth-operator"} 1',
      'controller_runtime_reconcile_errors_total{controller="vm"} 0',
    );
    const text = await scrape();
    expect(sum(text, oldest)).toBeGreaterThan(0);
    expect(sum(text, `${transition}_sum{${of},phase="Running"}`)).toBeGreaterThan(0);
    expect(sum(text, 'controller_runtime_reconcile_total{controller="vm"')).toBeGreaterThan(0);
    expect(sum(text, 'rest_client_requests_total{code="201"')).toBeGreaterThan(0);
    expect(sum(text, 'process_resident_memory_bytes')).toBeGreaterThan(0);
  });

  test('have no fault that promtool finds', async () => {
    const text = await scrape();
    const checking = run('promtool', ['check', 'metrics']);
    checking.child.stdin?.end(text);
    expect(await checking).toEqual({ stdout: '', stderr: '' });
  });

  test('come from the same process when the certificate is renewed before its end', async () => {
    const { certificate } = await ask(['--insecure']);
    const next = await waitFor(
      'another certificate',
      async () => {
        const served = (await ask(['--insecure'])).certificate;
        return served !== certificate && served;
      },
      RENEWED,
    );
    const [first, second] = [certificate, next].map((pem) => new X509Certificate(pem)) as [
      X509Certificate,
      X509Certificate,
    ];
    expect(Date.parse(second.validTo)).toBeGreaterThan(Date.parse(first.validTo));
    expect(Date.now()).toBeLessThan(Date.parse(first.validTo));
    expect(await askTrusting(next, '--oauth2-bearer', reader)).toMatchObject({ status: 200 });
    await expect(askTrusting(certificate)).rejects.toThrow(/certificate/);
    expect(await isAlive(operator)).toBe(true);
  });
});

/** Returns the sum of all lines with this beginning. */
function sum(text: string, beginning: string): number {
  const lines = text.split('\n').filter((line) => line.startsWith(beginning));
  return lines.reduce((total, line) => total + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
}
