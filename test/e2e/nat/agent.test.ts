/** NAT through the whole chain of control plane, operator, agent in a network namespace and real guest, with faults. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { isAlive } from '../../../agent/processes/process.ts';
import { NAT_READY_CONDITION, NAT_TAINT, NETWORK_CONDITION } from '../../../api/v1alpha1/names.ts';
import { NODES } from '../../../kube/core.ts';
import { createImage } from '../../fixtures/images.ts';
import { readMetrics } from '../../support/operatorlog.ts';
import { VMs } from '../../fixtures/vms.ts';
import { waitFor } from '../../../hack/wait.ts';
import { StartedProgram } from '../../wires/startedprogram.ts';
import { NAMESPACE, NatHost, NODE } from '../../worlds/natagent.ts';
import { whyNotHere } from '../../worlds/nat.ts';
import { unless } from '../../support/unless.ts';

/** Time limit for an emulated guest on a busy machine. */
const BOOT = { deadlineMilliseconds: 120_000, intervalMilliseconds: 250 };
/** Time within which users are promised a repair or a report. */
const PROMISED = { deadlineMilliseconds: 5_000, intervalMilliseconds: 20 };
const SETUP_MILLISECONDS = 300_000;
const PORT = 8080;
/** Port of the VM that will never run. */
const DOOMED_PORT = 8081;
const GUESTS = '10.213.0.0/20';
/** Errors if a packet is dropped, or the host on the way refuses it. */
const UNREACHABLE = /timeout|fetch failed/;
const QUIET_CHECKS = 200;
const QUIET_INTERVAL_SECONDS = 0.05;
/** Time limit. The checks take up to a minute, because the machine also emulates a guest. */
const QUIET_MILLISECONDS = 240_000;
/** Time limit for the report that a fault is over, and for the steps of the operator after a fault. They have no promise. */
const NO_PROMISE = { deadlineMilliseconds: 60_000 };
/** Time limit for a program in the guest that asks for a page. The guest is emulated. */
const ASKED_MILLISECONDS = 10_000;
const REPAIRS = 'berth_agent_network_repairs_total';
const FAILURES = 'berth_vm_deployments_failed_total';

function checks(result: 'healthy' | 'repaired' | 'machine_faulty' | 'faulty'): string {
  return `berth_agent_network_checks_total{result="${result}"}`;
}

const missing = whyNotHere();

describe('nat from the agent to the VM', unless(missing), () => {
  let host: NatHost;
  let vms: VMs;
  /** Uid of the machine that runs through all tests. */
  let uid: string;

  beforeAll(async () => {
    host = await NatHost.start();
    vms = new VMs(host.cluster, NAMESPACE);
    await host.makeImage();
    await makeVM('steady', 'guest', PORT);
    await vms.waitForCondition('steady', 'Ready', { status: 'True' }, BOOT);
    uid = (await vms.pod('steady')).metadata.uid ?? '';
  }, SETUP_MILLISECONDS);

  afterEach(() => host?.removeForeignTable());

  afterAll(async () => {
    await host?.[Symbol.asyncDispose]();
  });

  async function makeVM(name: string, image: string, port: number): Promise<void> {
    const readiness = { type: 'Port' as const, port: 80 };
    const guestMetadata = { team: `team of ${name}` };
    await vms.create(name, {
      image,
      cpu: 1,
      memory: '128Mi',
      ports: [`${port}:80`],
      readiness,
      guestMetadata,
    });
  }

  async function reachable(options = NO_PROMISE): Promise<void> {
    await waitFor(
      'the guest to be reachable',
      async () => (await host.page(PORT)).includes('berth-guest'),
      options,
    );
  }

  async function networkIs(
    name: string,
    status: 'True' | 'False',
    options = status === 'True' ? NO_PROMISE : PROMISED,
  ): Promise<string> {
    return await waitFor(
      `Pod and VM ${name} to say that its network is ${status}`,
      async () => {
        const [pod, vm] = await Promise.all([vms.pod(name), vms.get(name)]);
        const ofPod = pod.status?.conditions?.find(({ type }) => type === NETWORK_CONDITION);
        const ofVM = vm.status?.conditions?.find(({ type }) => type === 'NetworkReady');
        return ofPod?.status === status && ofVM?.status === status && (ofVM.message ?? ' ');
      },
      options,
    );
  }

  /** Checks the condition of the Node, and the taint that the operator derives from it. */
  async function hostTakesVMs(takes: boolean): Promise<void> {
    await waitFor(
      `the host ${takes ? 'to take VMs again' : 'to be kept from taking VMs'}`,
      async () => {
        const { spec, status } = await host.cluster.client().get(NODES, { name: NODE });
        const ready = status?.conditions?.find(({ type }) => type === NAT_READY_CONDITION)?.status;
        const tainted = spec?.taints?.some(({ key }) => key === NAT_TAINT) ?? false;
        return ready === (takes ? 'True' : 'False') && tainted !== takes;
      },
      NO_PROMISE,
    );
  }

  async function events(reason: string): Promise<string> {
    const fields = ['-A', `--field-selector=reason=${reason}`, '-o', 'jsonpath={.items[*].message}'];
    return (await host.cluster.kubectl(['get', 'events', ...fields])).stdout;
  }

  /** Checks that the same machine and its VM run on, whatever happened to the network. */
  async function runsOn(): Promise<void> {
    expect((await vms.pod('steady')).metadata.uid).toBe(uid);
    expect((await vms.get('steady')).status?.phase).toBe('Running');
    const machines = await host.agent.machines();
    expect([...machines.keys()]).toEqual([uid]);
    for (const identity of machines.values()) {
      expect(await isAlive(identity)).toBe(true);
    }
  }

  /** Checks that nothing on the host names the deleted machine. Its disk is removed when the host has learned that the Pod is gone. */
  async function leavesNothing(gone: string, port: number): Promise<void> {
    const isHeld = async (): Promise<boolean> =>
      (await host.traces()).folders.some((name) => name.includes(gone));
    await waitFor('its disk and record to be gone', async () => !(await isHeld()));
    const traces = await host.traces();
    expect(traces.ports).toHaveLength(2); // the probe's and the steady guest's
    for (const text of [traces.processes, traces.attachments]) {
      expect(text).not.toContain(gone);
    }
    for (const text of [traces.rules, traces.connections]) {
      expect(text).not.toMatch(new RegExp(`\\b${port}\\b`));
    }
  }

  test('the guest reads its own values at 169.254.169.254', async () => {
    for (const [key, value] of Object.entries({ name: 'steady', host: NODE, team: 'team of steady' })) {
      await waitFor(`the value of ${key}`, async () => {
        const page = `/cgi-bin/do?metadata=/metadata/${key}`;
        const answer = await host.page(PORT, page, ASKED_MILLISECONDS).catch(() => '');
        return answer.startsWith('HTTP/1.1 200 OK\r\n') && answer.endsWith(`\r\n\r\n${value}`);
      });
    }
  });

  test.each([
    ['the table flushed', ['nft', 'flush', 'ruleset'], 'The nftables rules were missing or changed'],
    ['the bridge set down', ['ip', 'link', 'set', 'berth0', 'down'], 'Device berth0 was down'],
    [
      'forwarding switched off',
      ['sysctl', '--quiet', '--write', 'net.ipv4.ip_forward=0'],
      'IPv4 forwarding was off',
    ],
  ])(
    '%s while Running: repaired by the agent within 5 s, counted, told, and the guest reachable again',
    async (_what, [file = '', ...args], repair) => {
      await reachable();
      const before = await host.metric(REPAIRS);
      const began = performance.now();
      host.net.inHost(file, ...args);
      await reachable(PROMISED);
      process.stderr.write(`${repair} after ${Math.round(performance.now() - began)} ms\n`);
      await waitFor('the repair to be counted', async () => (await host.metric(REPAIRS)) > before);
      await waitFor('the repair to be told', async () => (await events('NetworkRepaired')).includes(repair));
      await runsOn();
    },
  );

  test('kubectl port-forward reaches the guest at its own address', async () => {
    const { kubectlPath, kubeconfig } = host.cluster;
    const args = ['--kubeconfig', kubeconfig, '-n', NAMESPACE, 'port-forward', 'pod/steady', ':80'];
    const forward = new StartedProgram(kubectlPath, args);
    try {
      const [, port] = await forward.prints(/127\.0\.0\.1:(\d+) -> 80/);
      const response = await fetch(`http://127.0.0.1:${port}/`);
      expect(await response.text()).toContain('berth-guest');
    } finally {
      forward.kill();
    }
  });

  test("another table dropping the guest's packets while Running: told within 5 s, healed when it goes, the VM kept", async () => {
    const { podIP } = (await vms.pod('steady')).status ?? {};
    const faulty = await host.metric(checks('machine_faulty'));
    host.addForeignTable(`ip saddr ${podIP} drop`);
    const began = performance.now();
    expect(await networkIs('steady', 'False')).toContain('table inet other, chain theirs');
    process.stderr.write(`reported after ${Math.round(performance.now() - began)} ms\n`);
    await expect(host.page(PORT)).rejects.toThrow(UNREACHABLE);
    const isCounted = async () => (await host.metric(checks('machine_faulty'))) > faulty;
    await waitFor('the fault to be counted', isCounted);
    host.removeForeignTable();
    await networkIs('steady', 'True');
    await reachable();
    await runsOn();
  });

  test('repair made impossible during a deployment: VM gone, told, counted, host tainted until it heals, nothing left over', async () => {
    const faulty = await host.metric(checks('faulty'));
    // The Image is created now. Otherwise the host would have it already when the VM is created.
    host.downloads.holdBack();
    await createImage(host.cluster, 'gated', { http: host.downloads.next() });
    await makeVM('doomed', 'gated', DOOMED_PORT);
    await vms.waitForPhase('doomed', 'Pulling');
    const doomed = (await vms.pod('doomed')).metadata.uid ?? '';
    expect((await host.traces()).folders.join()).toContain(doomed);
    host.addForeignTable(`ip saddr ${GUESTS} drop`);
    host.downloads.release();
    await hostTakesVMs(false);
    await networkIs('steady', 'False', NO_PROMISE);
    await vms.waitUntilGone('doomed', NO_PROMISE);
    await waitFor('the Event', async () =>
      (await events('NATSelfHealFailed')).includes('table inet other, chain theirs'),
    );
    const failures = `${FAILURES}{vm_namespace="${NAMESPACE}",reason="NATSelfHealFailed"} 1`;
    await waitFor('the failure to be counted', async () =>
      (await readMetrics(host.cluster, host.operator)).split('\n').includes(failures),
    );
    expect(await host.metric(checks('faulty'))).toBeGreaterThan(faulty);
    await leavesNothing(doomed, DOOMED_PORT);
    await hostTakesVMs(false);
    host.removeForeignTable();
    await hostTakesVMs(true);
    await networkIs('steady', 'True');
    await reachable();
    await runsOn();
  });

  test('200 quiet checks with a guest running: no repair counted', async () => {
    await host.restartAgent(QUIET_INTERVAL_SECONDS);
    await waitFor(
      `${QUIET_CHECKS} checks`,
      async () => (await host.metric(checks('healthy'))) >= QUIET_CHECKS,
      { deadlineMilliseconds: QUIET_MILLISECONDS, intervalMilliseconds: 1_000 },
    );
    const counted = await Promise.all(
      [REPAIRS, checks('repaired'), checks('machine_faulty'), checks('faulty')].map((line) =>
        host.metric(line),
      ),
    );
    expect(counted).toEqual([0, 0, 0, 0]);
    await reachable();
    await runsOn();
  });
});
