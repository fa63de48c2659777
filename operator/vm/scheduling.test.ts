import { describe, expect, it } from 'vitest';
import { HOST_MARK, HOST_VALUE } from '../../api/v1alpha1/names.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { hostPodSpec } from '../tasks/placement.ts';
import { condense, describeTaints, explainPlacement, schedulingReason } from './scheduling.ts';

describe("the scheduler's reasons, in a short form", () => {
  it.each([
    [
      '0/1 nodes are available: 1 Insufficient berth.dev/slot. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.',
      'No host is free: 1 without a free slot',
    ],
    [
      "0/9 nodes are available: 2 Insufficient memory, 3 Insufficient berth.dev/slot, 4 node(s) didn't match Pod's node affinity/selector. preemption: 0/9 nodes are available: 9 No preemption victims found.",
      'No host is free: 2 short of memory, 3 without a free slot',
    ],
    [
      '0/4 nodes are available: 1 node(s) had untolerated taint {berth.dev/nat-unready: true}, 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 node(s) were unschedulable.',
      'No host is free: 1 with broken NAT',
    ],
    [
      '0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 Insufficient cpu.',
      'No host is free: 1 with broken NAT, 1 short of CPU',
    ],
    [
      "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 nodes are available.",
      'No host has the architecture, name or tag that the VM requests',
    ],
    [
      "0/4 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, 3 node(s) didn't satisfy plugin(s) [NodeAffinity]. preemption: 0/4 nodes are available.",
      'No host is free: 1 with a reserved port in use',
    ],
    ['something the scheduler never said before', 'something the scheduler never said before'],
    ['', 'No host was found'],
  ])('%s', (message, expected) => {
    expect(condense(message, { taints: () => ['1 with broken NAT'], lacking: () => 0 })).toBe(expected);
  });

  it.each([
    "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, 2 node(s) didn't match Pod's node affinity/selector.",
    "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match Pod's node affinity/selector.",
  ])('do not count nodes that are not hosts: %s', (message) => {
    expect(condense(message, { taints: () => [], lacking: () => 0 })).toBe(
      'No host has the architecture, name or tag that the VM requests',
    );
  });

  it('names the holder of a reserved port, which the scheduler never does', () => {
    const pod = {
      spec: {
        containers: [
          {
            name: 'machine',
            image: 'i',
            ports: [
              { hostPort: 8822, containerPort: 8822, protocol: 'TCP' },
              { name: 'vnc', containerPort: 5999, protocol: 'TCP' },
            ],
          },
        ],
      },
      status: {
        conditions: [
          {
            type: 'PodScheduled',
            status: 'False',
            message: "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
          },
        ],
      },
    } as unknown as Pod;
    const view = schedulingReason(pod, {
      portHolder: () => 'platform-ci/web',
      hosts: () => [],
      startingHosts: () => [],
      avoidedNodes: [],
    });
    expect(view).toEqual({
      reason: 'Unschedulable',
      message: 'No host is free: 1 with a reserved port in use (8822/TCP is held by platform-ci/web)',
    });
  });

  it('names the hosts that refused the VM, and does not claim that no host matches it', () => {
    const reasonOf = (message?: string) => {
      const conditions = message && [{ type: 'PodScheduled', status: 'False', message }];
      const pod = { spec: { containers: [] }, status: { conditions: conditions || [] } } as unknown as Pod;
      const avoidedNodes = ['rack', 'tower'];
      return schedulingReason(pod, {
        portHolder: () => undefined,
        hosts: () => [],
        startingHosts: () => [],
        avoidedNodes,
      }).message;
    };
    expect(reasonOf("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.")).toBe(
      'All hosts that match the VM have refused it: rack, tower. The Events of the VM give the causes. Add a host, or create the VM again',
    );
    expect(reasonOf('0/3 nodes are available: 1 Insufficient memory.')).toBe(
      'No host is free: 1 short of memory; the VM could not start on rack, tower',
    );
    expect(reasonOf()).toBe('The VM is waiting for the scheduler; the VM could not start on rack, tower');
  });

  it('names what the VM requests if no host has it', () => {
    const spec = hostPodSpec({
      placement: {
        dedicatedTo: 'platform-ci',
        architecture: 'arm64',
        nodeName: 'rack',
        required: [{ key: 'tag.berth.dev/gpu', operator: 'Exists' }],
      },
      tolerations: [],
      pullSecrets: [],
      priorityClassName: 'machines',
    });
    const message = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.";
    const conditions = [{ type: 'PodScheduled', status: 'False', message }];
    const hints = {
      portHolder: () => undefined,
      hosts: () => [],
      startingHosts: () => [],
      avoidedNodes: [],
    };
    const pod = { spec: { ...spec, containers: [] }, status: { conditions } } as unknown as Pod;
    expect(schedulingReason(pod, hints).message).toBe(
      'No host has the architecture, name or tag that the VM requests: the architecture arm64, the tag gpu, the name rack',
    );
  });

  it.each([
    ['berth.dev/macos-guest', '1', [{}, {}], 'No host can take it: 2 that run no macOS guests'],
    [
      'berth.dev/macos-guest',
      '1',
      [{}, { 'berth.dev/macos-guest': '2' }],
      'No host is free: 1 with two macOS guests already, 1 that run no macOS guests',
    ],
    ['berth.dev/slot', '1', [{ 'berth.dev/slot': '0' }, {}], 'No host can take it: 2 with no slots at all'],
    ['berth.dev/shared-disk', '1', [{}, {}], 'No host can take it: 2 with no shared disk'],
    [
      'cpu',
      '1500m',
      [{ cpu: '1' }, { cpu: '1499m' }],
      'No host can take it: 2 with too few processors for it',
    ],
    [
      'memory',
      '4Gi',
      [{ memory: '2Gi' }, { memory: '4Gi' }],
      'No host is free: 1 short of memory, 1 with too little memory for it',
    ],
    ['ephemeral-storage', '9Gi', [{}, {}], 'No host can take it: 2 with too small a disk for it'],
  ])('tells %s that is used up from one that no host has', (resource, wanted, allocatables, expected) => {
    const message = `0/3 nodes are available: 2 Insufficient ${resource}, 1 node(s) didn't match Pod's node affinity/selector.`;
    const pod = {
      spec: { containers: [{ name: 'machine', resources: { requests: { [resource]: wanted } } }] },
    } as unknown as Pod;
    const hosts = allocatables.map((allocatable) => ({ status: { allocatable } }) as unknown as Node);
    expect(explainPlacement(pod, message, () => hosts)).toBe(expected);
  });

  it('says that no host runs macOS, and not what these hosts lack besides, as if the guest had to wait for it', () => {
    const requests = { 'berth.dev/macos-guest': '1', memory: '4Gi' };
    const pod = {
      spec: { containers: [{ name: 'machine', resources: { requests } }] },
    } as unknown as Pod;
    const busy = { status: { allocatable: { memory: '8Gi' } } } as unknown as Node;
    const cordoned = { spec: { unschedulable: true }, status: {} } as unknown as Node;
    const message =
      '0/2 nodes are available: 1 Insufficient memory, 1 Insufficient berth.dev/macos-guest, 1 node(s) were unschedulable.';
    expect(explainPlacement(pod, message, () => [busy, cordoned])).toBe(
      'No host can take it: 2 that run no macOS guests',
    );
    const mac = {
      status: { allocatable: { memory: '8Gi', 'berth.dev/macos-guest': '2' } },
    } as unknown as Node;
    expect(explainPlacement(pod, message, () => [busy, mac])).toContain('No host is free: 1 short of memory');
  });

  it('counts a cordoned host for its cordon and not for the resource that it lacks too', () => {
    const pod = {
      spec: { containers: [{ name: 'machine', resources: { requests: { memory: '4Gi' } } }] },
    } as unknown as Pod;
    const hosts = [
      { metadata: { name: 'large' }, status: { allocatable: { memory: '4Gi' } } },
      {
        metadata: { name: 'small' },
        spec: { unschedulable: true },
        status: { allocatable: { memory: '2Gi' } },
      },
    ] as unknown as Node[];
    const message = '0/2 nodes are available: 1 Insufficient memory, 1 node(s) were unschedulable.';
    expect(explainPlacement(pod, message, () => hosts)).toBe(
      'No host is free: 1 cordoned, 1 short of memory',
    );
  });

  it('says that a host is starting, if the VM can run on it', () => {
    const message = '0/2 nodes are available: 1 Insufficient berth.dev/slot, 1 node(s) were unschedulable.';
    const condition = { type: 'PodScheduled', status: 'False', reason: 'Unschedulable', message };
    const pod = (architecture: string): Pod =>
      ({
        spec: {
          ...hostPodSpec({
            placement: { dedicatedTo: 'platform-ci', architecture: architecture as 'amd64' },
            tolerations: [],
            pullSecrets: [],
            priorityClassName: '',
          }),
          containers: [],
        },
        status: { conditions: [condition] },
      }) as unknown as Pod;
    const labels = { 'berth.dev/host': 'true', 'kubernetes.io/arch': 'amd64' };
    const starting = {
      metadata: { name: 'rack1-7', labels: { ...labels, [HOST_MARK]: HOST_VALUE } },
    } as unknown as Node;
    const reasonOf = (architecture: string) =>
      schedulingReason(pod(architecture), {
        portHolder: () => undefined,
        hosts: () => [],
        startingHosts: () => [starting],
        avoidedNodes: [],
      });
    expect(reasonOf('amd64')).toEqual({
      reason: 'HostStarting',
      message: 'No host is free: 1 without a free slot. Host rack1-7 is starting',
    });
    expect(reasonOf('arm64')).toEqual({
      reason: 'Unschedulable',
      message: 'No host is free: 1 without a free slot',
    });
  });

  it('counts hosts by the taint that keeps the Pod off, among those that it may use', () => {
    const pod = {
      spec: { tolerations: [{ key: 'berth.dev/host', operator: 'Equal', value: 'true' }], containers: [] },
    } as unknown as Pod;
    const host = (name: string, ...keys: string[]): Node => ({
      apiVersion: 'v1',
      kind: 'Node',
      metadata: { name },
      spec: {
        taints: ['berth.dev/host', ...keys].map((key) => ({ key, value: 'true', effect: 'NoSchedule' })),
      },
    });
    const soft: Node = {
      ...host('e'),
      spec: { taints: [{ key: 'x/y', value: 'true', effect: 'PreferNoSchedule' }] },
    };
    const hosts = [host('a'), host('b', 'berth.dev/nat-unready'), host('c', 'x/y'), host('d', 'x/y'), soft];
    expect(describeTaints(pod, hosts)).toEqual(['1 with broken NAT', '2 with the taint x/y']);
    const full = host('h', 'node.kubernetes.io/disk-pressure');
    expect(describeTaints(pod, [full])).toEqual(['1 whose disk is nearly full']);
    const cordoned: Node = { ...host('f'), spec: { unschedulable: true } };
    expect(describeTaints(pod, [cordoned])).toEqual(['1 cordoned']);
    const off: Node = { ...host('g'), spec: { unschedulable: true } };
    off.metadata.annotations = { 'berth.dev/cordoned-for': 'g' };
    expect(describeTaints(pod, [cordoned, off])).toEqual(['1 cordoned', '1 switched off']);
    const nodeSelectorTerms = [
      { matchFields: [{ key: 'metadata.name', operator: 'In' as const, values: ['b'] }] },
    ];
    pod.spec.affinity = {
      nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms } },
    };
    expect(describeTaints(pod, hosts)).toEqual(['1 with broken NAT']);
  });
});
