import { Registry } from 'prom-client';
import { expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { parseConfig } from '../config/config.ts';
import { exportRunnerMetrics } from './runnermetrics.ts';

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
