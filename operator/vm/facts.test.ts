import { describe, expect, it } from 'vitest';
import { MACHINE_API_VERSION } from '../../api/v1alpha1/machine.ts';
import type { VMSpec } from '../../api/v1alpha1/vm.ts';
import type { VMConfig } from '../../api/v1alpha1/vmconfig.ts';
import type { VMStatus } from '../../api/v1alpha1/vmstatus.ts';
import type { Node, Pod } from '../../kube/core.ts';
import { reachOfNode } from '../host/observe.ts';
import {
  AWAITED_ANNOTATION,
  MACHINE_ANNOTATION,
  MACHINE_CONDITION,
  MACHINE_CONTAINER,
} from '../../api/v1alpha1/names.ts';
import { parseConfig } from '../config/config.ts';
import { gatherFacts, nextDeadline } from './facts.ts';
import type { ObservedVM } from './observe.ts';
import { buildPod } from './pod.ts';
import { isUnresolved, resolve } from './resolve.ts';
import { deleteMachine, deploy, finish, retirePod } from './steps.ts';

const none = () => undefined;

const CREATED = '2030-01-01T00:00:00Z';
const BOUND = '2030-01-01T01:00:00Z';
const FIRST_RAN = '2030-01-01T02:00:00Z';

function observed(spec: Partial<VMSpec>, status: VMStatus, pod: Partial<Pod> = {}): ObservedVM {
  return {
    vm: {
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'VM',
      metadata: { name: 'x', namespace: 'platform-default', uid: 'vm', creationTimestamp: CREATED },
      spec: { image: 'registry.example/guest:1', ...spec },
      status,
    },
    pod: {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: 'x', namespace: 'platform-default', uid: 'pod', creationTimestamp: CREATED },
      spec: { nodeName: 'host', containers: [] },
      status: { phase: 'Running' },
      ...pod,
    },
    nameTakenBy: undefined,
    ...reachOfNode({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'host' } }),
    successor: undefined,
    resizeRefused: undefined,
    snapshots: [],
    lookups: { vmConfig: none, image: none, iso: none, credentials: none },
    portHolder: () => undefined,
    hosts: () => [],
    startingHosts: () => [],
    isDedicated: () => false,
    config: parseConfig({}, 'test'),
    now: Date.parse(CREATED),
    clusterUid: 'cluster',
    random: () => 'ab'.repeat(32),
  };
}

/** Returns a Node whose condition Ready has had this status since this RFC 3339 time. */
function nodeThat(status: 'True' | 'Unknown', lastTransitionTime: string): Node {
  const conditions = [{ type: 'Ready', status, lastTransitionTime }];
  return { apiVersion: 'v1', kind: 'Node', metadata: { name: 'host' }, status: { conditions } };
}

/** Returns the Pod of the attempt with this number. */
function attempt(number: number, status: NonNullable<Pod['status']>): Partial<Pod> {
  const look = { ...observed({}, { attempt: number }), pod: undefined };
  const resolved = resolve(look);
  if (isUnresolved(resolved)) {
    throw new Error(resolved.message);
  }
  const { vm, config, random } = look;
  const { metadata } = buildPod({
    vm,
    resolved,
    attempt: number,
    avoidedNodes: [],
    isDedicated: false,
    config,
    clusterUid: 'cluster',
    random,
  });
  return { metadata: { ...metadata, name: 'x', uid: `pod-${number}` }, status };
}

function deadline(look: ObservedVM): string | undefined {
  const found = nextDeadline(look, gatherFacts(look));
  return found && `${found.reason} ${new Date(found.at).toISOString().slice(11, 19)}`;
}

/** Returns the message of the deployment's end for a Pod. */
function timeout(pod: Partial<Pod>): string | undefined {
  const look = observed({}, {}, pod);
  return nextDeadline(look, gatherFacts(look))?.message;
}

describe('a VM that hosts refuse before its first run', () => {
  const refused: NonNullable<Pod['status']> = {
    phase: 'Failed',
    reason: 'PortTaken',
    message: '8822/TCP is in use',
  };

  it('is placed again, and never on a host that refused it', () => {
    const look = observed({}, { attempt: 2, avoidedNodes: ['first'] }, attempt(2, refused));
    const facts = gatherFacts(look);
    expect(facts).toMatchObject({ attempt: 3, avoidedNodes: ['first', 'host'], failure: undefined });
    const write = deploy({ ...look, pod: undefined }, facts).writes.find(({ kind }) => kind === 'createPod');
    const { affinity } = (write as { pod: Pod }).pod.spec;
    const terms = affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution?.nodeSelectorTerms;
    const not = (name: string) => ({ key: 'metadata.name', operator: 'NotIn', values: [name] });
    // The terms are alternatives, so each of them must leave out both hosts.
    const both = [not('first'), not('host')];
    expect(terms?.map(({ matchFields }) => matchFields)).toEqual([both, both]);
  });

  it('is placed again at most three times', () => {
    const third = observed({}, { attempt: 3, avoidedNodes: ['first', 'second'] }, attempt(3, refused));
    expect(gatherFacts(third)).toMatchObject({ attempt: 4, failure: undefined });
    const avoidedNodes = ['first', 'second', 'third'];
    const facts = gatherFacts(observed({}, { attempt: 4, avoidedNodes }, attempt(4, refused)));
    expect(facts).toMatchObject({ attempt: 4, avoidedNodes, failure: { reason: 'PortTaken' } });
  });

  it('fails with the message of the host if the VM or its VMConfig names this host', () => {
    const failure = { reason: 'PortTaken', message: '8822/TCP is in use' };
    const failed = { attempt: 1, avoidedNodes: [], failure };
    const pinned = observed({ placement: { node: 'host' } }, {}, attempt(1, refused));
    expect(gatherFacts(pinned)).toMatchObject(failed);
    const look = observed({ configRef: { name: 'config' } }, {}, attempt(1, refused));
    const withConfig = (node: string) => {
      const spec = { placement: { node } };
      const vmConfig = () => ({ metadata: { name: 'config' }, spec }) as unknown as VMConfig;
      return gatherFacts({ ...look, lookups: { ...look.lookups, vmConfig } });
    };
    expect(withConfig('host')).toMatchObject(failed);
    expect(withConfig('other')).toMatchObject({ attempt: 2, avoidedNodes: ['host'], failure: undefined });
  });

  it('does not avoid a host that was only lost', () => {
    const facts = gatherFacts({ ...observed({}, {}, attempt(1, {})), node: undefined, isGivenUp: true });
    expect(facts).toMatchObject({ attempt: 2, avoidedNodes: [], failure: undefined });
  });
});

describe('a Pod of an earlier placement', () => {
  const kinds = (status: VMStatus, pod: Partial<Pod>) => {
    const look = observed({}, status, pod);
    return retirePod(look, gatherFacts(look)).writes.map(({ kind }) => kind);
  };

  it('is deleted, unless its host returned and started its machine', () => {
    expect(kinds({ attempt: 2 }, attempt(1, { phase: 'Pending' }))).toEqual(['deletePod']);
    expect(kinds({ attempt: 2 }, attempt(1, { phase: 'Running' }))).toEqual([]);
  });

  it('is recognized, although another release described its machine', () => {
    const { metadata, ...pod } = attempt(2, { phase: 'Pending' });
    const text = metadata?.annotations?.[MACHINE_ANNOTATION]?.replace(MACHINE_API_VERSION, 'berth.dev/later');
    const later = { ...pod, metadata: { name: 'x', annotations: { [MACHINE_ANNOTATION]: text ?? '' } } };
    expect(kinds({ attempt: 2 }, later)).toEqual([]);
    expect(kinds({ attempt: 3 }, later)).toEqual(['deletePod']);
  });
});

describe('a VM that has run', () => {
  const ran: VMStatus = { attempt: 1, firstRunningTime: FIRST_RAN };

  it('has failed when its Pod is deleted, and is not placed again', () => {
    const pod = attempt(1, { phase: 'Running' });
    const metadata = { ...pod.metadata, name: 'x', deletionTimestamp: FIRST_RAN };
    const facts = gatherFacts(observed({}, ran, { ...pod, metadata }));
    expect(facts).toMatchObject({ attempt: 1, failure: { reason: 'PodDeleted' } });
  });

  it('keeps its Pod while a silent host may still run its machine, unless it is deleted', () => {
    const pod = attempt(1, { phase: 'Running' });
    const metadata = { ...pod.metadata, name: 'x', deletionTimestamp: FIRST_RAN };
    const failure = { reason: 'PodDeleted', message: 'deleted', time: FIRST_RAN };
    const look = observed({}, { ...ran, failure }, { ...pod, metadata });
    const silent = { ...look, ...reachOfNode(nodeThat('Unknown', CREATED)), now: Date.parse(FIRST_RAN) };
    expect(retirePod(silent, gatherFacts(silent)).writes).toEqual([]);
    const vm = { ...look.vm, metadata: { ...look.vm.metadata, deletionTimestamp: FIRST_RAN } };
    expect(deleteMachine({ ...silent, vm }).writes.map(({ kind }) => kind)).toEqual([
      'deletePod',
      'releasePod',
    ]);
  });

  it('is not deleted after a failure of its network, but a VM that never ran is', () => {
    const failure = { reason: 'NATSelfHealFailed', message: 'no bridge', time: FIRST_RAN };
    const writes = (status: VMStatus) => {
      const look = observed({}, { ...status, failure });
      return finish(look, gatherFacts(look)).writes.map(({ kind }) => kind);
    };
    expect(writes(ran)).toEqual([]);
    expect(writes({ attempt: 1 })).toEqual(['deleteVM']);
  });
});

/**
 * Returns the state that an agent reports for a machine that is off. The machine was created but not started, or was stopped
 * after a run.
 */
function off(reason: string, containerID?: string): Partial<Pod> {
  const container = { name: 'machine', image: '', imageID: '', ready: false, restartCount: 0 };
  const state = { waiting: { reason } };
  return {
    status: {
      phase: 'Running',
      containerStatuses: [{ ...container, state, ...(containerID && { containerID }) }],
    },
  };
}

describe('a VM that is created Stopped', () => {
  it.each(['Stopped', 'Starting'])('has not run, and its deployment has ended, when it is %s', (reason) => {
    const look = observed({ powerState: 'Stopped', deployTimeoutSeconds: 60 }, {}, off(reason));
    expect(gatherFacts(look).firstRunningTime).toBeUndefined();
    expect(deadline(look)).toBeUndefined();
  });

  it('is placed again when its Pod is deleted, because nothing is lost', () => {
    const pod = off('Stopped');
    const metadata = { name: 'x', uid: 'pod', deletionTimestamp: CREATED };
    const { attempt, failure } = gatherFacts(observed({ powerState: 'Stopped' }, {}, { ...pod, metadata }));
    expect({ attempt, failure }).toEqual({ attempt: 2, failure: undefined });
  });

  it('is placed again, also while its host reports that it removes the machine', () => {
    const { metadata } = attempt(1, {}) as Pod;
    const pod = { ...off('Terminating'), metadata: { ...metadata, deletionTimestamp: CREATED } };
    const facts = gatherFacts(observed({ powerState: 'Stopped' }, { attempt: 2 }, pod));
    expect(facts).toMatchObject({ attempt: 2, failure: undefined, firstRunningTime: undefined });
  });

  it('is distinguished from a VM that ran and was stopped while no operator ran', () => {
    const look = observed({ powerState: 'Stopped' }, {}, off('Stopped', 'berth://uid'));
    expect(gatherFacts(look).firstRunningTime).toBe(CREATED);
  });
});

describe('the TTL of a VM whose guest shut itself down', () => {
  const LATER = Date.parse('2030-01-01T02:00:30Z');

  const shutDown = { status: 'False', reason: 'GuestShutdown', lastTransitionTime: FIRST_RAN } as const;

  /** Returns whether the VM is deleted 30 s after the operator stored that its guest shut itself down. `report` comes from its host. */
  function isDeleted(
    spec: Partial<VMSpec>,
    status: VMStatus = {},
    report: object = {},
    at = FIRST_RAN,
  ): boolean {
    const message = JSON.stringify(report);
    const condition = { ...shutDown, type: MACHINE_CONDITION, lastTransitionTime: at, message };
    const { metadata } = attempt(1, {});
    const pod = {
      metadata: { name: 'x', ...metadata },
      status: { phase: 'Running', conditions: [condition] },
    };
    const conditions = [{ ...shutDown, type: 'Ready', message: '' }];
    const look = observed({ ttlSecondsAfterFinished: 30, ...spec }, { conditions, ...status }, pod as Pod);
    const after = { ...look, now: LATER };
    return finish(after, gatherFacts(after)).writes.length > 0;
  }

  it('deletes it, but not while a restart or a revert is pending', () => {
    expect(isDeleted({})).toBe(true);
    expect(isDeleted({ restartPolicy: 'Always' })).toBe(false);
    expect(isDeleted({ restartPolicy: 'OnFailure' })).toBe(true);
    expect(isDeleted({ restartRequestedAt: CREATED })).toBe(false);
    expect(isDeleted({ restartRequestedAt: CREATED }, { restartedAt: CREATED })).toBe(true);
    expect(isDeleted({ restartRequestedAt: CREATED }, {}, { restartedAt: CREATED })).toBe(true);
    expect(isDeleted({ restartRequestedAt: BOUND }, { restartedAt: CREATED })).toBe(false);
    expect(isDeleted({ revertRequestedAt: BOUND }, {}, { revertedAt: CREATED })).toBe(false);
    expect(isDeleted({ revertRequestedAt: BOUND }, {}, { revertedAt: BOUND })).toBe(true);
  });

  it('counts from the time when the operator stored the end, if the clock of the host is behind', () => {
    const ready = (change: object) => ({
      conditions: [{ ...shutDown, type: 'Ready', message: '', ...change }],
    });
    expect(isDeleted({ ttlSecondsAfterFinished: 31 }, {}, {}, CREATED)).toBe(false);
    expect(isDeleted({}, ready({ status: 'True', reason: 'Running' }), {}, CREATED)).toBe(false);
    expect(isDeleted({}, ready({ lastTransitionTime: CREATED }))).toBe(true);
    expect(isDeleted({ ttlSecondsAfterFinished: 31 }, ready({ lastTransitionTime: CREATED }))).toBe(false);
  });
});

describe('deadlines of a VM', () => {
  it('count its activity from its first run, not from its creation, its placement or its last start', () => {
    const restarted = { firstRunningTime: FIRST_RAN, startTime: '2030-01-01T03:00:00Z' };
    expect(deadline(observed({ activeDeadlineSeconds: 60 }, restarted))).toBe('DeadlineExceeded 02:01:00');
  });

  it.each([
    ['2029-12-31T23:00:00Z', BOUND],
    ['2030-01-01T01:30:00Z', '2030-01-01T01:30:00Z'],
    ['2030-01-01T09:00:00Z', FIRST_RAN],
  ])('count a first run at %s by its host between the placement and now: %s', (startedAt, expected) => {
    const container = { name: MACHINE_CONTAINER, image: '', imageID: '', ready: true, restartCount: 0 };
    const containerStatuses = [{ ...container, state: { running: { startedAt } } }];
    const pod: Partial<Pod> = { status: { phase: 'Running', startTime: BOUND, containerStatuses } };
    const look = { ...observed({}, {}, pod), now: Date.parse(FIRST_RAN) };
    expect(gatherFacts(look).firstRunningTime).toBe(expected);
  });

  it('count its deployment from its placement on a host, and only until it runs', () => {
    const scheduled = { type: 'PodScheduled', status: 'True' as const, lastTransitionTime: BOUND };
    const pending: Partial<Pod> = { status: { phase: 'Pending', conditions: [scheduled] } };
    expect(deadline(observed({ deployTimeoutSeconds: 60 }, {}, pending))).toBe('DeployTimeout 01:01:00');
    expect(timeout(pending)).toMatch(/ to host host$/);
    const unbound = { ...pending, spec: { containers: [] } };
    expect(deadline(observed({ deployTimeoutSeconds: 60 }, {}, unbound))).toBeUndefined();
    const ran = { firstRunningTime: FIRST_RAN };
    expect(deadline(observed({ deployTimeoutSeconds: 60 }, ran, pending))).toBeUndefined();
    const state = { waiting: { reason: 'Stopped' } };
    const container = { name: MACHINE_CONTAINER, image: '', imageID: '', ready: false, restartCount: 0 };
    const containerStatuses = [{ ...container, state }];
    const stopped: Partial<Pod> = {
      status: { phase: 'Running', conditions: [scheduled], containerStatuses },
    };
    expect(deadline(observed({ deployTimeoutSeconds: 60 }, {}, stopped))).toBeUndefined();
  });

  it('end no deployment on a silent host, so that the VM gets another host when its host counts as lost', () => {
    const pending: Partial<Pod> = { status: { phase: 'Pending', startTime: BOUND } };
    const at = (time: string) => {
      const look = {
        ...observed({}, {}, pending),
        ...reachOfNode(nodeThat('Unknown', '2030-01-01T01:05:00Z')),
      };
      const { attempt, failure } = gatherFacts({ ...look, now: Date.parse(time) });
      return { attempt, failure };
    };
    expect(at('2030-01-01T01:14:59Z')).toEqual({ attempt: 1, failure: undefined });
    expect(at('2030-01-01T01:15:00Z')).toEqual({ attempt: 2, failure: undefined });
  });

  it('count a deployment from the time when its host reports again', () => {
    const pending: Partial<Pod> = { status: { phase: 'Pending', startTime: BOUND } };
    const on = (node: Node) =>
      deadline({ ...observed({ deployTimeoutSeconds: 60 }, {}, pending), ...reachOfNode(node) });
    expect(on(nodeThat('True', CREATED))).toBe('DeployTimeout 01:01:00');
    expect(on(nodeThat('True', FIRST_RAN))).toBe('DeployTimeout 02:01:00');
  });

  it('name the last step that the host reported, with its percentage', () => {
    const state = { waiting: { reason: 'Pulling', message: '42%' } };
    const container = {
      name: MACHINE_CONTAINER,
      image: '',
      imageID: '',
      ready: false,
      restartCount: 0,
      state,
    };
    const pulling: Partial<Pod> = { status: { phase: 'Pending', containerStatuses: [container] } };
    expect(timeout(pulling)).toBe(
      'The VM was not Running 600 s after it was bound to host host; the host last reported Pulling: 42%',
    );
  });
});

describe('a machine that waits for its next Pod', () => {
  const since = '2030-01-01T02:00:00Z';
  const awaited = JSON.stringify({ vm: { vm: 'platform-default/x', since } });
  const node: Node = {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'host', annotations: { [AWAITED_ANNOTATION]: awaited } },
  };

  it.each([
    [599, undefined],
    [600, 'PodDeleted'],
  ])('%i s after its Pod was deleted by force: %s', (seconds, reason) => {
    const ran = observed({}, { firstRunningTime: FIRST_RAN });
    const successor = { metadata: { name: 'x', namespace: 'platform-default' }, spec: { containers: [] } };
    const now = Date.parse(since) + seconds * 1000;
    const { failure } = gatherFacts({ ...ran, ...reachOfNode(node), pod: undefined, successor, now });
    expect(failure?.reason).toBe(reason);
  });
});
