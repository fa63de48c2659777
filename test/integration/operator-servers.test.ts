/** Servers with a real operator: power, actions, hosts with VMs, and hosts that are off on purpose. */
import { delimiter, dirname } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { CORDONED_FOR_ANNOTATION, DESIRED_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { PowerAction, Server, ServerSpec } from '../../api/v1alpha1/server.ts';
import { run } from '../../base/exec.ts';
import { timestamp } from '../../base/time.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { NODES, SECRETS } from '../../kube/core.ts';
import { exampleCommands, exampleObjects } from '../fixtures/examples.ts';
import { conditionOf, VMs } from '../fixtures/vms.ts';
import { conditionIn } from '../../operator/objects/conditions.ts';
import { faultsIn } from '../support/operatorlog.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { Plug } from '../worlds/plug.ts';

/** Seconds until the controller-manager sets a silent host to Unknown, and seconds until such a host counts as lost. */
const GRACE_SECONDS = 4;
const LOST_SECONDS = 3;
/** Number of Servers whose controllers answer nothing. */
const SILENT = 20;
/** Longest time in milliseconds of an action beside silent controllers. A call of one of these takes 10 s. */
const PROMPT_MILLISECONDS = 8_000;
/** Time limit of the commands of an example. One of them waits until the Server is Ready, at most half a minute. */
const COMMANDS_MILLISECONDS = 60_000;

let cluster: Cluster;
let operator: OperatorProcess;
let vms: VMs;
let made = 0;
const parts: AsyncDisposable[] = [];

beforeAll(async () => {
  cluster = await startCluster({
    name: `operator-servers-${process.pid}`,
    nodeMonitorGracePeriodSeconds: GRACE_SECONDS,
  });
  operator = await cluster.startOperator({ config: { hostLostTimeoutSeconds: LOST_SECONDS } });
  vms = new VMs(cluster);
});

afterEach(async () => {
  await Promise.all(parts.splice(0).map((part) => part[Symbol.asyncDispose]()));
  await cluster.kubectl(['delete', 'servers', '--all']);
});

afterAll(async () => {
  await cluster?.stop();
});

async function plugIn(power: 'on' | 'off' = 'on'): Promise<Plug> {
  const plug = await Plug.start(power);
  parts.push(plug);
  return plug;
}

async function join(name: string): Promise<ActingHost> {
  const host = await ActingHost.join(cluster.client(), name, { staysReady: true });
  parts.push({ [Symbol.asyncDispose]: () => host.remove() });
  return host;
}

async function create(
  name: string,
  controller: ServerSpec['controller'],
  spec: Partial<ServerSpec> = {},
): Promise<void> {
  made += 1;
  const addresses = [`192.0.2.${made}`];
  await cluster.client().create(SERVERS, { metadata: { name }, spec: { addresses, controller, ...spec } });
}

async function patch(name: string, spec: Partial<ServerSpec>): Promise<void> {
  await cluster.client().mergePatch(SERVERS, { name }, { spec });
}

async function act(name: string, action: PowerAction): Promise<string> {
  const requestedAt = timestamp(Date.now());
  await patch(name, { powerAction: { action, requestedAt } });
  return requestedAt;
}

async function waitForServer(name: string, what: string, test: (server: Server) => boolean): Promise<Server> {
  return await waitFor(`Server ${name} to be ${what}`, async () => {
    const server = await cluster.client().get(SERVERS, { name });
    return test(server) && server;
  });
}

async function waitForResult(
  name: string,
  result: string,
): Promise<NonNullable<NonNullable<Server['status']>['lastAction']>> {
  const { status } = await waitForServer(name, result, (one) => one.status?.lastAction?.result === result);
  return status?.lastAction ?? expect.fail();
}

function ref(name: string): { namespace: string; name: string } {
  return { namespace: vms.namespace, name };
}

async function runOn(host: ActingHost, name: string): Promise<void> {
  await vms.create(name, { placement: { node: host.name } });
  await host.waitForPod(ref(name));
  await host.run(ref(name));
  await vms.waitForPhase(name, 'Running');
}

async function isCordoned(name: string): Promise<boolean> {
  return (await cluster.client().get(NODES, { name })).spec?.unschedulable === true;
}

/** Waits until the Node has been Unknown for this time. */
async function waitUntilSilent(name: string, milliseconds = 0): Promise<void> {
  await waitFor('the Node to be Unknown', async () => {
    const { status } = await cluster.client().get(NODES, { name });
    const ready = conditionIn(status, 'Ready');
    return (
      ready?.status === 'Unknown' && Date.now() > Date.parse(ready.lastTransitionTime ?? '') + milliseconds
    );
  });
}

/** Waits until the VM is Ready=Unknown because its host is off, or has another reason. */
async function waitForReason(name: string, reason: string): Promise<void> {
  await vms.waitForVM(
    name,
    `Ready with reason ${reason}`,
    (vm) => conditionOf(vm, 'Ready')?.reason === reason,
  );
}

describe('the last lines of an example', () => {
  it.each([
    ['server-redfish', 'rack1-7', 'on', ['off', 'on']],
    ['server-ipmi', 'build-3', 'off', ['on']],
    ['server-webhook', 'mac-3', 'on', ['off']],
  ] as const)('%s switch the power of %s, which was %s', async (example, server, power, commands) => {
    const plug = await plugIn(power);
    const input = await exampleObjects(example, { Server: { controller: plug.controller } });
    await cluster.kubectl(['apply', '-f', '-'], { input });
    const environment = {
      // kubectl keeps its cache there.
      HOME: cluster.directory,
      KUBECONFIG: cluster.kubeconfig,
      PATH: [dirname(cluster.kubectlPath), process.env['PATH']].join(delimiter),
    };
    const timeoutMilliseconds = COMMANDS_MILLISECONDS;
    await run('sh', ['-ec', await exampleCommands(example)], { environment, timeoutMilliseconds });
    await waitForResult(server, 'Succeeded');
    expect(plug.commands).toEqual(commands);
  });
});

describe('a Server', () => {
  it('shows its power, is switched off by spec.powerAction once, and ignores an older action', async () => {
    const plug = await plugIn();
    await create('plain', plug.controller, { displayName: 'Rack 1', type: 'mini', location: 'Berlin' });
    await cluster.kubectl(['wait', 'server/plain', '--for=condition=Ready', '--timeout=60s']);
    expect((await cluster.kubectl(['get', 'srv', 'plain', '--no-headers'])).stdout).toMatch(
      /^plain\s+On\s+True\s+mini\s+Berlin/,
    );
    const requestedAt = await act('plain', 'Off');
    const { message, by, acceptedAt } = await waitForResult('plain', 'Succeeded');
    expect({ message, by }).toEqual({
      message: 'The controller of Server plain confirmed Off',
      by: 'spec.powerAction',
    });
    expect(acceptedAt).toBeDefined();
    await waitForServer('plain', 'Off', ({ status }) => status?.power === 'Off');
    await patch('plain', { powerAction: { action: 'On', requestedAt: '2020-01-01T00:00:00Z' } });
    await waitFor('the Event', async () =>
      (await cluster.kubectl(['describe', 'server', 'plain'])).stdout.includes(
        `spec.powerAction On of 2020-01-01T00:00:00Z is ignored, because it is not later than the action of ${requestedAt}`,
      ),
    );
    expect(plug.commands).toEqual(['off']);
  });

  it('is Rebooting from the acceptance to the next On, by off and on', async () => {
    const plug = await plugIn();
    await create('rebooted', plug.controller);
    await waitForServer('rebooted', 'On', ({ status }) => status?.power === 'On');
    await act('rebooted', 'Reboot');
    await waitForServer('rebooted', 'Rebooting', ({ status }) => status?.power === 'Rebooting');
    await waitForResult('rebooted', 'Succeeded');
    await waitForServer('rebooted', 'On', ({ status }) => status?.power === 'On');
    expect(plug.commands).toEqual(['off', 'on']);
  });

  it('with an address or a Node of an older Server is Stalled, until the older one gives the address up', async () => {
    const [first, second] = [await plugIn(), await plugIn()];
    await create('older', first.controller, { addresses: ['2001:db8::1', '192.0.2.200'] });
    await waitForServer('older', 'On', ({ status }) => status?.power === 'On');
    await create('younger', second.controller, { addresses: ['2001:0DB8:0::0001'] });
    const { status } = await waitForServer(
      'younger',
      'Stalled',
      (one) => conditionIn(one.status, 'Stalled') !== undefined,
    );
    expect(conditionIn(status, 'Stalled')).toMatchObject({
      reason: 'AddressInUse',
      message: 'spec.addresses: Server older already has the address 2001:db8::1',
    });
    await patch('older', { addresses: ['192.0.2.200'], nodeName: 'shared' });
    await create('twin', second.controller, { nodeName: 'shared' });
    const twin = await waitForServer(
      'twin',
      'Stalled',
      (one) => conditionIn(one.status, 'Stalled') !== undefined,
    );
    expect(conditionIn(twin.status, 'Stalled')?.message).toBe(
      'spec.nodeName: Server older already names Node shared',
    );
    await waitForServer('younger', 'On', (one) => one.status?.power === 'On');
  });

  it('uses a Secret of the type basic-auth alone, and tells a missing one', async () => {
    const metadata = { namespace: 'berth-system', name: 'other-secret' };
    await cluster
      .client()
      .create(SECRETS, { metadata, type: 'Opaque', data: { username: 'YQ==', password: 'YQ==' } });
    const redfish = { endpoint: 'https://127.0.0.1:9' };
    await create('hasty', { redfish, secretName: 'nothere' });
    const hasty = await waitForServer('hasty', 'in Error', ({ status }) => status?.power === 'Error');
    expect(conditionIn(hasty.status, 'Reachable')?.message).toBe(
      'spec.controller.secretName: namespace berth-system has no Secret nothere',
    );
    await create('curious', { redfish, secretName: 'other-secret' });
    const server = await waitForServer('curious', 'in Error', ({ status }) => status?.power === 'Error');
    expect(conditionIn(server.status, 'Reachable')).toMatchObject({
      status: 'False',
      reason: 'CredentialsMissing',
      message: 'spec.controller.secretName: Secret other-secret must have the type kubernetes.io/basic-auth',
    });
  });

  it(`is switched off at once beside ${SILENT} Servers whose controllers are silent`, async () => {
    const silent = await plugIn();
    silent.isSilent = true;
    const plug = await plugIn();
    await Promise.all(
      Array.from({ length: SILENT }, (_, index) => create(`silent-${index}`, silent.controller)),
    );
    await create('lively', plug.controller);
    await waitForServer('lively', 'On', ({ status }) => status?.power === 'On');
    await act('lively', 'Off');
    await waitFor('the command', async () => plug.commands.length === 1, {
      deadlineMilliseconds: PROMPT_MILLISECONDS,
    });
    expect(plug.commands).toEqual(['off']);
  });
});

describe('a host with VMs', () => {
  it('is not switched off, and says the number of its VMs', async () => {
    const plug = await plugIn();
    const host = await join('refusing');
    await runOn(host, 'refused');
    await create('refusing', plug.controller, { nodeName: host.name });
    await waitForServer(
      'refusing',
      'occupied',
      (one) => conditionIn(one.status, 'Occupied')?.status === 'True',
    );
    await act('refusing', 'Off');
    const { message } = await waitForResult('refusing', 'Refused');
    expect(message).toBe('1 machine runs on host refusing');
    const server = await waitForServer(
      'refusing',
      'Stalled',
      (one) => conditionIn(one.status, 'Stalled') !== undefined,
    );
    expect(conditionIn(server.status, 'Stalled')?.reason).toBe('PowerActionRefused');
    expect({ commands: plug.commands, cordoned: await isCordoned(host.name) }).toEqual({
      commands: [],
      cordoned: false,
    });
  });

  it('is switched off by force: its VMs say so and are not lost, and run when it is back', async () => {
    const plug = await plugIn();
    const host = await join('forced');
    await runOn(host, 'forced-vm');
    await create('forced', plug.controller, { nodeName: host.name, policy: { whenOccupied: 'Force' } });
    await act('forced', 'Off');
    await waitForReason('forced-vm', 'HostPoweredOff');
    await host.silence();
    await waitForResult('forced', 'Succeeded');
    await waitUntilSilent(host.name, (LOST_SECONDS + 2) * 1000);
    expect(conditionOf(await vms.get('forced-vm'), 'Ready')).toMatchObject({
      status: 'Unknown',
      reason: 'HostPoweredOff',
      message: 'The host of the VM (Server forced) was switched off',
    });
    expect(await isCordoned(host.name)).toBe(true);
    await act('forced', 'On');
    await waitForServer('forced', 'On', ({ status }) => status?.power === 'On');
    await host.comeBack();
    await waitForReason('forced-vm', 'Running');
    await waitFor('the host to be uncordoned', async () => !(await isCordoned(host.name)));
    expect(plug.commands).toEqual(['off', 'on']);
  });

  it('is waited for: cordoned at once, switched off when its last VM has ended', async () => {
    const plug = await plugIn();
    const host = await join('patient');
    await runOn(host, 'patient-vm');
    await create('patient', plug.controller, { nodeName: host.name, policy: { whenOccupied: 'Wait' } });
    await act('patient', 'Off');
    const { message } = await waitForResult('patient', 'Waiting');
    expect(message).toMatch(/^1 machine runs on host patient\. Berth waits until /);
    await waitFor('the host to be cordoned', () => isCordoned(host.name));
    await vms.delete('patient-vm');
    await host.end(ref('patient-vm'));
    await waitForResult('patient', 'Succeeded');
    expect(plug.commands).toEqual(['off']);
  });

  it('takes VMs again when the wait is over, and when its Server is deleted meanwhile', async () => {
    const plug = await plugIn();
    const host = await join('busy');
    await runOn(host, 'busy-vm');
    await create('busy', plug.controller, {
      nodeName: host.name,
      policy: { whenOccupied: 'Wait', waitSeconds: 1 },
    });
    await act('busy', 'Off');
    const { message } = await waitForResult('busy', 'Refused');
    expect(message).toBe('1 machine runs on host busy after a wait of 1 s');
    await waitFor('the host to be uncordoned', async () => !(await isCordoned(host.name)));
    await patch('busy', { policy: { waitSeconds: 600 } });
    await act('busy', 'Off');
    await waitForResult('busy', 'Waiting');
    await waitFor('the host to be cordoned', () => isCordoned(host.name));
    await cluster.client().delete(SERVERS, { name: 'busy' });
    await waitFor('the host to be uncordoned', async () => !(await isCordoned(host.name)));
    const { metadata } = await cluster.client().get(NODES, { name: host.name });
    expect(metadata.annotations?.[CORDONED_FOR_ANNOTATION]).toBeUndefined();
    expect(plug.commands).toEqual([]);
  });

  it('keeps a cordon of an administrator, and its stopped VM stays Ready and is not started', async () => {
    const plug = await plugIn();
    const host = await join('resting');
    await runOn(host, 'resting-vm');
    await vms.patch('resting-vm', { powerState: 'Stopped' });
    await host.stopped(ref('resting-vm'));
    await waitForReason('resting-vm', 'Stopped');
    await cluster.kubectl(['cordon', host.name]);
    await create('resting', plug.controller, { nodeName: host.name });
    await act('resting', 'Off');
    await waitForResult('resting', 'Succeeded');
    await host.silence();
    await waitUntilSilent(host.name);
    expect(conditionOf(await vms.get('resting-vm'), 'Ready')).toMatchObject({
      status: 'True',
      reason: 'Stopped',
    });
    await vms.patch('resting-vm', { powerState: 'Running' });
    await waitForReason('resting-vm', 'HostPoweredOff');
    expect((await vms.pod('resting-vm')).metadata.annotations?.[DESIRED_ANNOTATION]).toContain(
      '"powerState":"Stopped"',
    );
    await act('resting', 'On');
    await waitForServer('resting', 'On', ({ status }) => status?.power === 'On');
    await host.comeBack();
    await waitFor('the VM to be started', async () =>
      (await vms.pod('resting-vm')).metadata.annotations?.[DESIRED_ANNOTATION]?.includes(
        '"powerState":"Running"',
      ),
    );
    await waitForServer('resting', 'back', ({ status }) => status?.host === undefined);
    expect(await isCordoned(host.name)).toBe(true);
  });
});

it('the operator logged no fault', () => {
  expect(faultsIn(operator.logFile)).toEqual([]);
});
