import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Machine, machineSchema } from '../../api/v1alpha1/machine.ts';
import { INSECURE_SERVERS_ANNOTATION, MACHINE_ANNOTATION } from '../../api/v1alpha1/names.ts';
import {
  entryText,
  readInsecureServers,
  REGISTRIES_CONFIG_MAP,
} from '../../api/v1alpha1/registrycredentials.ts';
import { CONFIG_MAPS, PODS } from '../../kube/core.ts';
import { IMAGES, VM_CONFIGS } from '../../api/v1alpha1/resources.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { AS_OPERATOR, isAllowed } from '../support/admission.ts';
import { allowMetrics, faultsIn, untilKnown } from '../support/operatorlog.ts';
import { LARGEST_GUEST_DATA } from '../fixtures/guestdata.ts';
import { CLUSTER_ROLES } from '../fixtures/objects.ts';
import { conditionOf, IMAGE, VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';

const DEFAULTS = { cpu: 3, memory: '5Gi' };
const TEAM = 'platform-team';

let cluster: Cluster;
let operator: OperatorProcess;
let vms: VMs;
let teamVms: VMs;

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-resolution-${process.pid}`, hosts: 8 });
  await cluster.createNamespace(TEAM);
  await cluster.kubectl(['label', 'namespace', TEAM, 'berth.dev/custom-pods=true']);
  operator = await cluster.startOperator({ config: { defaults: DEFAULTS } });
  await allowMetrics(cluster);
  vms = new VMs(cluster);
  teamVms = new VMs(cluster, TEAM);
});

afterAll(async () => {
  await cluster?.stop();
});

async function createConfig(name: string, spec: object): Promise<void> {
  await cluster.client().create(VM_CONFIGS, { metadata: { name, namespace: 'platform-default' }, spec });
}

async function machineOf(from: VMs, name: string): Promise<Machine> {
  const pod = await from.pod(name);
  return machineSchema.parse(JSON.parse(pod.metadata.annotations?.[MACHINE_ANNOTATION] ?? ''));
}

async function operatorMayMakePods(): Promise<boolean> {
  return await isAllowed(cluster, AS_OPERATOR, ['create', 'pods', '-n', vms.namespace]);
}

async function expectNoPod(from: VMs, name: string): Promise<void> {
  await expect(from.pod(name)).rejects.toMatchObject({ status: 404 });
}

describe('the values of a VM', () => {
  it('come from its VMConfig, then from the operator, then from the built-in defaults', async () => {
    await createConfig('desk', {
      image: 'registry.example/desk:2',
      cpu: 6,
      displayWidth: 2560,
      displayHeight: 1440,
      hardwareIdentity: 'Dynamic',
    });
    await vms.create('layers', { configRef: { name: 'desk' }, memory: '2Gi' });
    const { status } = await vms.waitForPhase('layers', 'Running');
    expect(status).toMatchObject({
      resources: { cpu: 6, memory: '2Gi' },
      image: { reference: 'registry.example/desk:2' },
      config: { name: 'desk', namespace: 'platform-default', generation: 1 },
    });
    expect(await machineOf(vms, 'layers')).toMatchObject({
      displayWidth: 2560,
      displayHeight: 1440,
      displayDPI: 96,
      network: { mode: 'NAT' },
      vnc: { enabled: true },
    });

    await vms.create('plain');
    const plain = await vms.waitForPhase('plain', 'Running');
    expect(plain.status?.resources).toMatchObject(DEFAULTS);
    const { spec } = await vms.pod('plain');
    expect(spec.containers[0]?.resources?.requests).toMatchObject({ cpu: '3', 'berth.dev/slot': '1' });
    // kubectl needs these values for `attach -it` and `port-forward pod/plain 5900:vnc`.
    expect(spec.containers[0]).toMatchObject({ stdin: true, tty: true });
    expect(spec.containers[0]?.ports).toMatchObject([{ name: 'vnc', containerPort: 5999 }]);
  });

  it('come from a VMConfig of platform-default in other namespaces too, and its later edits reach no existing VM', async () => {
    await teamVms.create('guest', { configRef: { name: 'desk' } });
    const { status } = await teamVms.waitForPhase('guest', 'Running');
    expect(status?.config).toMatchObject({ namespace: 'platform-default', generation: 1 });
    expect(status?.resources).toMatchObject({ cpu: 6, memory: '5Gi' });

    const ref = { namespace: 'platform-default', name: 'desk' };
    const edited = await cluster.client().mergePatch(VM_CONFIGS, ref, { spec: { cpu: 8 } });
    await untilKnown(cluster, operator, VM_CONFIGS, edited);
    await teamVms.create('newer', { configRef: { name: 'desk' } });
    const newer = await teamVms.waitForPhase('newer', 'Running');
    expect(newer.status?.resources?.cpu).toBe(8);
    expect(newer.status?.config?.generation).toBe(2);
    expect((await teamVms.get('guest')).status?.resources?.cpu).toBe(6);
  });

  it('include the credentials of its namespace for the registry, and no other namespace has them', async () => {
    const registry = 'old.example:5000';
    const credential = { scheme: 'http', registry, secretName: 'team-cred', allowInsecure: true } as const;
    await cluster.client().create(CONFIG_MAPS, {
      metadata: { name: REGISTRIES_CONFIG_MAP, namespace: TEAM },
      data: { 'team-cred': entryText(credential), broken: '{"server":' },
    });
    // The operator reads the credentials when it makes the Pod, so they need not be in a cache.
    const spec = { image: `${registry}/desk:2`, imagePullSecrets: [{ name: 'mine' }] };
    await teamVms.create('credited', spec);
    await vms.create('uncredited', spec);
    await teamVms.waitForPhase('credited', 'Running');
    await vms.waitForPhase('uncredited', 'Running');
    const { spec: credited, metadata } = await teamVms.pod('credited');
    expect(credited.imagePullSecrets).toEqual([{ name: 'mine' }, { name: 'team-cred' }]);
    expect(readInsecureServers(metadata.annotations?.[INSECURE_SERVERS_ANNOTATION])).toEqual([
      { scheme: 'http', registry },
    ]);
    const other = await vms.pod('uncredited');
    expect(other.spec.imagePullSecrets).toEqual([{ name: 'mine' }]);
    expect(other.metadata.annotations).not.toHaveProperty([INSECURE_SERVERS_ANNOTATION]);

    // Nobody else learns that an entry has a mistake.
    await teamVms.create('mistaken');
    await waitFor('the Event about the mistake', async () => {
      const { stdout } = await cluster.kubectl(['-n', TEAM, 'events', '--for', 'vm/mistaken']);
      return /RegistryEntryIgnored.*Entry broken is ignored/.test(stdout);
    });
  });

  it('architecture and os come from an Image, whose source goes to the host unchanged', async () => {
    await cluster.client().create(IMAGES, {
      metadata: { name: 'shared', namespace: 'platform-default' },
      spec: {
        source: { sharedFile: { path: 'guests/desk.qcow2' } },
        architecture: 'arm64',
        os: 'Linux',
        format: 'QCOW2',
      },
    });
    await teamVms.create('from-image', { image: 'shared' });
    await teamVms.waitForPhase('from-image', 'Running');
    expect(await machineOf(teamVms, 'from-image')).toMatchObject({
      image: { type: 'sharedFile', path: 'guests/desk.qcow2' },
      imageFormat: 'QCOW2',
      architecture: 'arm64',
      os: 'Linux',
    });
  });
});

it('reach the Pod completely with the most data for a guest that the API server allows', async () => {
  await vms.create('full', LARGEST_GUEST_DATA);
  await vms.waitForPhase('full', 'Running');
  expect(await machineOf(vms, 'full')).toMatchObject(LARGEST_GUEST_DATA);
});

describe('a VM that cannot be placed yet shows the reason, and goes on when it can', () => {
  it('ConfigNotFound: until the VMConfig appears', async () => {
    await vms.create('no-config', { configRef: { name: 'coming' } });
    const { message } = await vms.waitForCondition('no-config', 'Scheduled', {
      status: 'False',
      reason: 'ConfigNotFound',
    });
    expect(message).toContain('coming');
    await createConfig('coming', { image: IMAGE });
    await vms.waitForPhase('no-config', 'Running');
  });

  it('ImageNotFound: until the Image appears', async () => {
    await vms.create('no-image', { image: 'later' });
    const { message } = await vms.waitForCondition('no-image', 'ImageReady', {
      status: 'False',
      reason: 'ImageNotFound',
    });
    expect(message).toContain('later');
    await expectNoPod(vms, 'no-image');
    await cluster.client().create(IMAGES, {
      metadata: { name: 'later', namespace: 'platform-default' },
      spec: { source: { registry: { reference: IMAGE } } },
    });
    const { status } = await vms.waitForPhase('no-image', 'Running');
    expect(status?.image?.reference).toBe(IMAGE);
  });

  it('NoImage: Stalled while nothing names an image, until the VMConfig does', async () => {
    await createConfig('empty', { cpu: 2 });
    await vms.create('nothing', { configRef: { name: 'empty' } });
    await vms.waitForCondition('nothing', 'Stalled', { status: 'True', reason: 'NoImage' });
    expect(conditionOf(await vms.get('nothing'), 'Ready')).toMatchObject({
      status: 'False',
      reason: 'NoImage',
    });
    await expectNoPod(vms, 'nothing');
    const ref = { namespace: 'platform-default', name: 'empty' };
    await cluster.client().mergePatch(VM_CONFIGS, ref, { spec: { image: IMAGE } });
    await vms.waitForPhase('nothing', 'Running');
  });

  it('PortsNeedNAT: ports on a VM whose VMConfig asks for a bridge', async () => {
    await createConfig('bridged', { image: IMAGE, network: { mode: 'Bridge' } });
    await vms.create('ports', { configRef: { name: 'bridged' }, ports: ['8822:22'] });
    const { message } = await vms.waitForCondition('ports', 'Stalled', {
      status: 'True',
      reason: 'PortsNeedNAT',
    });
    expect(message).toContain('Bridge');
    await expectNoPod(vms, 'ports');
    const ref = { namespace: 'platform-default', name: 'bridged' };
    await cluster.client().mergePatch(VM_CONFIGS, ref, { spec: { network: { mode: 'NAT' } } });
    await vms.waitForPhase('ports', 'Running');
  });

  it('PortNotReservable: ports that the setting or its denials keep from VMs', async () => {
    await vms.create('reserves', { image: IMAGE, ports: ['22:22', '8822:22', '10250:80/udp'] });
    const { message } = await vms.waitForCondition('reserves', 'Stalled', {
      status: 'True',
      reason: 'PortNotReservable',
    });
    expect(message).toMatch(/port 22 is not among ports\.reservable .*; port 10250 is among ports\.denied/);
    expect(message).not.toContain('8822');
    await expectNoPod(vms, 'reserves');
  });

  it('PodNameTaken: the Pod of another owner is never adopted; the VM runs once that Pod is gone', async () => {
    const own = await cluster.client().create(PODS, {
      metadata: { name: 'taken', namespace: TEAM },
      spec: { containers: [{ name: 'own', image: 'registry.example/own:1' }] },
    });
    await teamVms.create('taken', {});
    const { message } = await teamVms.waitForCondition('taken', 'Scheduled', {
      status: 'False',
      reason: 'PodNameTaken',
    });
    expect(message).toContain('taken');
    const { metadata } = await teamVms.pod('taken');
    expect(metadata.uid).toBe(own.metadata.uid);
    expect(metadata.ownerReferences).toBeUndefined();
    expect(metadata.labels).toEqual(own.metadata.labels);
    await teamVms.deletePod('taken');
    await teamVms.waitForPhase('taken', 'Running');
  });

  it('PodRefused: a ResourceQuota, in the words of the server; the VM runs once there is room', async () => {
    await cluster.createNamespace('platform-poor');
    await cluster.kubectl(['create', 'quota', 'none', '--hard=pods=0', '-n', 'platform-poor']);
    // A quota refuses requests once the controller-manager has counted it.
    await cluster.kubectl([
      'wait',
      'quota/none',
      '-n',
      'platform-poor',
      '--for=jsonpath={.status.hard.pods}=0',
      '--timeout=60s',
    ]);
    const poor = new VMs(cluster, 'platform-poor');
    await poor.create('refused');
    const { message } = await poor.waitForCondition('refused', 'Scheduled', {
      status: 'False',
      reason: 'PodRefused',
    });
    expect(message).toContain('exceeded quota: none');
    expect(message).toContain('limited: pods=0');
    await cluster.kubectl(['delete', 'quota', 'none', '-n', 'platform-poor']);
    await poor.waitForPhase('refused', 'Running');
  });

  it('a port of another VM on the only host: the message names the other VM', async () => {
    const spec = { ports: ['9922:22', '9953:53/udp'], placement: { node: 'host-0' } };
    await vms.create('holder', spec);
    await vms.waitForPhase('holder', 'Running');
    await teamVms.create('wants', { ports: ['9953:53/UDP'], placement: { node: 'host-0' } });
    const { message } = await teamVms.waitForCondition('wants', 'Scheduled', {
      status: 'False',
      reason: 'Unschedulable',
    });
    expect(message).toBe(
      'No host is free: 1 with a reserved port in use (9953/UDP is held by a VM of another namespace)',
    );
    await vms.delete('holder');
    await teamVms.waitForPhase('wants', 'Running');
    expect((await teamVms.get('wants')).status?.endpoints).toEqual([
      { name: '9953-udp', protocol: 'UDP', hostPort: 9953, guestPort: 53 },
    ]);
  });

  it('four VMs with one port on the only host: one has it, and three name it', async () => {
    const names = ['port-a', 'port-b', 'port-c', 'port-d'];
    const left = new Set(names);
    await Promise.all(
      names.map((name) => vms.create(name, { ports: ['9954:22'], placement: { node: 'host-0' } })),
    );
    while (left.size > 0) {
      const holder = await waitFor('one of them to run', async () => {
        const all = await Promise.all([...left].map((name) => vms.get(name)));
        return all.find(({ status }) => status?.phase === 'Running')?.metadata.name;
      });
      left.delete(holder);
      const message = `No host is free: 1 with a reserved port in use (9954/TCP is held by VM ${holder})`;
      const wanted = { status: 'False', reason: 'Unschedulable', message } as const;
      await Promise.all([...left].map((name) => vms.waitForCondition(name, 'Scheduled', wanted)));
      await vms.delete(holder);
    }
  });
});

describe('the operator', () => {
  it('has all rights that it needs, and none of its writes was refused as invalid', () => {
    expect(faultsIn(operator.logFile)).toEqual([]);
  });

  // This test is the last, because the log of the operator has refusals from here on.
  it('tells that a right of its own is missing once this lasts, and tries again soon', async () => {
    const client = cluster.client();
    const role = { name: 'berth-operator' };
    const { rules } = await client.get(CLUSTER_ROLES, role);
    const fewer = rules.map((rule) => {
      const isForPods = rule.resources?.includes('pods') === true;
      return isForPods ? { ...rule, verbs: rule.verbs.filter((verb) => verb !== 'create') } : rule;
    });
    expect(await operatorMayMakePods()).toBe(true);
    await client.mergePatch(CLUSTER_ROLES, role, { rules: fewer });
    await waitFor('the right to be gone', async () => !(await operatorMayMakePods()));
    await vms.create('unmade');
    const { message } = await vms.waitForCondition('unmade', 'Scheduled', { reason: 'PodRefused' });
    expect(message).toMatch(/^pods is forbidden: User ".*:berth-operator" cannot create resource "pods"/);
    await client.mergePatch(CLUSTER_ROLES, role, { rules });
    await vms.waitForPhase('unmade', 'Running');
  });
});
