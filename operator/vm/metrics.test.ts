import { Registry } from 'prom-client';
import { describe, expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { exportRunnerMetrics, VMMetrics, type VMView } from './metrics.ts';
import { parseConfig } from '../config/config.ts';

const NOW = Date.parse('2026-01-01T01:00:00Z');

function vm(namespace: string, minutesOld: number, status: object, deleted = false): VM {
  const creationTimestamp = new Date(NOW - minutesOld * 60_000).toISOString();
  const deletion = deleted ? { deletionTimestamp: creationTimestamp } : {};
  return { metadata: { name: 'any', namespace, creationTimestamp, ...deletion }, status } as unknown as VM;
}

interface Scrape {
  metrics: VMMetrics;
  /** Returns the exported lines that contain `part`. */
  lines: (part: string) => Promise<string[]>;
}

function scrape(view: Partial<VMView>): Scrape {
  const registry = new Registry();
  const none = { isLeader: () => true, clock: () => NOW, vms: () => [], namespaces: () => [] };
  const metrics = new VMMetrics(registry, { ...none, ...view });
  const lines = async (part: string) =>
    (await registry.metrics()).split('\n').filter((line) => line.includes(part) && line[0] !== '#');
  return { metrics, lines };
}

describe('the number of waiting VMs', () => {
  it('is counted by namespace, with the age of the oldest VM that has never run', async () => {
    const vms = [
      vm('a', 20, { phase: 'Starting', firstRunningTime: '2026-01-01T00:50:00Z' }),
      vm('a', 2, {}),
      vm('a', 5, { phase: 'Pulling' }),
      vm('a', 30, { phase: 'Running', firstRunningTime: '2026-01-01T00:31:00Z' }),
      vm('a', 40, { phase: 'Terminating' }, true),
      vm('b', 3, { phase: 'Failed' }),
    ];
    const { lines } = scrape({ vms: () => vms, namespaces: () => ['a', 'b'] });
    expect(await lines('pending_vm')).toEqual([
      'berth_pending_vms{vm_namespace="a"} 3',
      'berth_pending_vms{vm_namespace="b"} 0',
      'berth_oldest_pending_vm_seconds{vm_namespace="a"} 300',
      'berth_oldest_pending_vm_seconds{vm_namespace="b"} 0',
    ]);
  });

  it('is exported only by the leader', async () => {
    const { lines } = scrape({ isLeader: () => false, vms: () => [vm('a', 2, {})], namespaces: () => ['a'] });
    expect(await lines('pending_vm')).toEqual([]);
  });
});

describe('events of VMs', () => {
  it('are counted when a status shows them for the first time', async () => {
    const { metrics, lines } = scrape({});
    const failed = {
      phase: 'Failed',
      failure: { reason: 'PortTaken', message: 'port 22', time: '' },
    } as const;
    for (const last of [{ phase: 'Starting' } as const, failed]) {
      metrics.observe(vm('a', 1, {}), last, failed, NOW);
    }
    expect(await lines('failed_total')).toEqual([
      'berth_vm_deployments_failed_total{vm_namespace="a",reason="PortTaken"} 1',
    ]);
    expect(await lines('transition_seconds_sum')).toEqual([
      'berth_vm_phase_transition_seconds_sum{vm_namespace="a",phase="Failed"} 60',
    ]);
  });

  it('have a reason of the catalogue, although a host can report any word', async () => {
    const { metrics, lines } = scrape({});
    const failure = { reason: 'WordOfTheHost', message: '', time: '' };
    metrics.observe(vm('a', 1, {}), {}, { failure }, NOW);
    expect(await lines('failed_total')).toEqual([
      'berth_vm_deployments_failed_total{vm_namespace="a",reason="MachineFailed"} 1',
    ]);
  });

  it('are no longer exported when their namespace is deleted', async () => {
    const { metrics, lines } = scrape({});
    const failed = { phase: 'Failed', failure: { reason: 'PortTaken', message: '', time: '' } } as const;
    for (const namespace of ['a', 'b']) {
      metrics.observe(vm(namespace, 1, {}), { phase: 'Starting' }, failed, NOW);
      metrics.notRenewed(vm(namespace, 1, {}));
    }
    metrics.forget('a');
    expect(await lines('vm_namespace="a"')).toEqual([]);
    for (const name of ['failed_total', 'not_renewed_total', 'transition_seconds_sum']) {
      expect(await lines(name)).toHaveLength(1);
    }
  });
});

describe('metrics of scale sets', () => {
  function vm(namespace: string, scaleSet: string | undefined, phase?: string): VM {
    const labels = scaleSet === undefined ? {} : { 'berth.dev/scale-set': scaleSet };
    return { metadata: { name: 'any', namespace, labels }, status: { phase } } as unknown as VM;
  }

  /** An operator with the configuration and some VMs, and a clock that the test sets. */
  class Operator {
    now = 0;
    isLeader = true;
    vms: VM[] = [];
    readonly #registry = new Registry();

    constructor(runnerMetrics: object) {
      exportRunnerMetrics(this.#registry, {
        isLeader: () => this.isLeader,
        clock: () => this.now,
        vms: () => this.vms,
        config: parseConfig({ runnerMetrics }, 'test').runnerMetrics,
      });
    }

    async lines(): Promise<string[]> {
      return (await this.#registry.metrics()).split('\n').filter((line) => line !== '' && line[0] !== '#');
    }
  }

  const RUNNERS = [
    vm('a', 'mac', 'Running'),
    vm('a', 'mac', 'Running'),
    vm('b', 'mac'),
    vm('a', undefined),
    vm('a', ''),
  ];

  it('VMs are counted by scale set, namespace and phase', async () => {
    const operator = new Operator({ enabled: true });
    operator.vms = RUNNERS;
    expect(await operator.lines()).toEqual([
      'berth_runner_scale_set_vms{scale_set="mac",vm_namespace="a",phase="Running"} 2',
      'berth_runner_scale_set_vms{scale_set="mac",vm_namespace="b",phase="Pending"} 1',
    ]);
  });

  it('come from the label, or from a name of which a part was generated', async () => {
    const operator = new Operator({ enabled: true });
    const made = (generateName: string, scaleSet?: string) => {
      const one = vm('ci', scaleSet, 'Running');
      return { ...one, metadata: { ...one.metadata, generateName } };
    };
    operator.vms = [made('mac-runner-'), made('mac-runner-', 'own'), made('vm-'), vm('ci', undefined)];
    const names = (await operator.lines()).map((line) => /scale_set="([^"]*)"/.exec(line)?.[1] ?? '');
    expect(new Set(names)).toEqual(new Set(['mac-runner', 'own']));
  });

  it('are counted again when the interval has passed, and not before', async () => {
    const operator = new Operator({ enabled: true, intervalSeconds: 60 });
    expect(await operator.lines()).toEqual([]);
    operator.vms = RUNNERS;
    operator.now = 59_999;
    expect(await operator.lines()).toEqual([]);
    operator.now = 60_000;
    expect(await operator.lines()).toHaveLength(2);
    operator.vms = [];
    operator.now = 120_000;
    expect(await operator.lines()).toEqual([]);
    operator.vms = RUNNERS;
    operator.now = 1_000;
    expect(await operator.lines(), 'the clock was set back').toHaveLength(2);
  });

  it('are exported only if the configuration enables them, and only by the leader', async () => {
    const silent = new Operator({});
    silent.vms = RUNNERS;
    expect(await silent.lines()).toEqual([]);
    const operator = new Operator({ enabled: true });
    operator.vms = RUNNERS;
    expect(await operator.lines()).toHaveLength(2);
    operator.isLeader = false;
    expect(await operator.lines()).toEqual([]);
    operator.isLeader = true;
    expect(await operator.lines()).toHaveLength(2);
  });
});
