import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { defineConfig } from 'vitest/config';
import { LongestFirst } from './hack/vitest/sequencer.ts';
import { whyNoDocker } from './test/docker/host.ts';

/**
 * A single step of a real cluster or guest takes at most two minutes, and several times that beside another project on the same
 * processors (`hack/test.ts`). A test that waits longer says so itself, and tests assert the deadlines of the product themselves.
 */
const REAL_PARTS_MILLISECONDS = 400_000;
/** Set-up may have to wait for a whole cluster. */
const HOOK_MILLISECONDS = 180_000;

/** Properties are shown by thousands of histories; on a busy machine they take a while. */
const UNIT_MILLISECONDS = 60_000;
/** Limit of `expect.poll`. Its default, 1 s, is too short on a busy machine. */
const POLL_MILLISECONDS = 30_000;

const realParts = {
  testTimeout: REAL_PARTS_MILLISECONDS,
  hookTimeout: HOOK_MILLISECONDS,
  pool: 'forks' as const,
};

/** Tests wait much of their time: for a cluster or guests of their own, for registries and disks. Two files fill two processors. */
const twoAtATime = { ...realParts, maxWorkers: 2 };

/** Files that would meet one another: they measure times, use real programs, or unpack the same images. */
const oneAtATime = { ...realParts, fileParallelism: false };

/** What takes minutes to make on a fresh machine, made before the deadlines of tests begin. */
const TOOLCHAIN = 'test/support/setup/toolchain.ts';
const SIMULATION = 'test/support/setup/simulation.ts';
const CHART_TOOLS = 'test/support/setup/chart.ts';
const GUESTS = 'test/support/setup/guests.ts';
/** It needs two versions of QEMU on one machine. */
const NEWER_QEMU = 'test/e2e/qemu/newer.test.ts';
/** It boots an emulated cloud image, which takes minutes. */
const WARM_CLOUD = 'test/e2e/guest/warmcloud.test.ts';
/** It needs Chromium. */
const CONSOLE = 'test/e2e/console/**';
const ADBD = 'test/support/setup/adbd.ts';
const METRICS_SERVER = 'test/support/setup/metricsserver.ts';
const CLOUD = 'test/support/setup/cloud.ts';
/** In each process of tests that have properties. */
const PROPERTIES = 'test/support/setup/properties.ts';

/**
 * Run a second time, on a control plane in containers: an API server that is killed and comes back, and a fleet with
 * operator, scheduler and simulated hosts. The other files of integration tests use nothing of a cluster that these
 * do not. Where there can be no containers, the tests in test/docker say why.
 */
const INTO_CONTAINERS =
  whyNoDocker() === undefined
    ? ['test/integration/kube-restart.test.ts', 'test/integration/operator-fleet.test.ts']
    : [];

const UNIT = '{base,api,kube,actions,operator,agent,runners,server,cli,console,hack}/**/*.test.ts';
/** Unit tests that replace modules. No other test may see the replacements. */
const REPLACE_MODULES = globSync(UNIT, { cwd: import.meta.dirname }).filter((file) =>
  /\bvi\.(?:mock|doMock)\(/.test(readFileSync(join(import.meta.dirname, file), 'utf8')),
);
const unit = {
  setupFiles: [PROPERTIES],
  testTimeout: UNIT_MILLISECONDS,
  expect: { poll: { timeout: POLL_MILLISECONDS } },
  // By default, vitest keeps one processor for itself. This processor would be idle most of the time.
  maxWorkers: '100%',
  sequence: { groupOrder: 0 },
};

/** Hostile tests that measure what a tenant feels of another one. Nothing may run beside them. */
const SHARES = 'test/hostile/shares-*.test.ts';

export default defineConfig({
  test: {
    reporters: ['default'],
    sequence: { sequencer: LongestFirst },
    projects: [
      {
        test: {
          name: 'unit-together',
          include: [UNIT],
          exclude: REPLACE_MODULES,
          // If each of the several hundred files loaded the product again, loading would take nearly as long as the tests.
          isolate: false,
          ...unit,
        },
      },
      {
        // `--project 'unit*'` names both, and hack/vitest/run.ts does so. No project is named `unit`, because it would miss these files.
        test: { name: 'unit-apart', include: REPLACE_MODULES, ...unit },
      },
      {
        test: {
          name: 'integration',
          include: ['test/integration/**/*.test.ts'],
          globalSetup: [SIMULATION, 'test/support/setup/sharedcluster.ts'],
          sequence: { groupOrder: 1 },
          ...twoAtATime,
        },
      },
      {
        test: {
          name: 'images',
          include: ['test/images/**/*.test.ts'],
          setupFiles: [PROPERTIES],
          sequence: { groupOrder: 2 },
          ...twoAtATime,
        },
      },
      {
        test: {
          name: 'chart',
          include: ['test/chart/**/*.test.ts'],
          globalSetup: [CHART_TOOLS, 'test/support/setup/sharedcluster.ts'],
          sequence: { groupOrder: 7 },
          ...twoAtATime,
        },
      },
      {
        test: {
          name: 'oci',
          include: ['test/oci/**/*.test.ts'],
          globalSetup: [TOOLCHAIN, SIMULATION, GUESTS, 'test/oci/setup.ts'],
          sequence: { groupOrder: 8 },
          ...oneAtATime,
        },
      },
      {
        test: {
          name: 'docker',
          include: ['test/docker/**/*.test.ts', ...INTO_CONTAINERS],
          globalSetup: [SIMULATION, 'test/docker/setup.ts'],
          setupFiles: ['test/docker/environment.ts'],
          sequence: { groupOrder: 10 },
          ...twoAtATime,
        },
      },
      {
        test: {
          name: 'harness',
          include: ['test/harness/**/*.test.ts'],
          globalSetup: [TOOLCHAIN, SIMULATION],
          sequence: { groupOrder: 3 },
          ...twoAtATime,
        },
      },
      {
        test: {
          name: 'e2e',
          include: ['test/e2e/**/*.test.ts'],
          exclude: ['test/e2e/nat/**', 'test/e2e/installed/**', NEWER_QEMU, WARM_CLOUD, CONSOLE],
          globalSetup: [TOOLCHAIN, GUESTS, CLOUD, ADBD, METRICS_SERVER],
          sequence: { groupOrder: 4 },
          ...twoAtATime,
        },
      },
      {
        // Not among the projects of all tests: it compiles a generator of clients.
        test: {
          name: 'clients',
          include: ['test/clients/**/*.test.ts'],
          globalSetup: [SIMULATION],
          sequence: { groupOrder: 13 },
          ...oneAtATime,
        },
      },
      {
        // Not among the projects of all tests: it runs the real programs, which only some machines have.
        test: {
          name: 'real',
          include: [
            'test/e2e/emulator/contract.test.ts',
            'test/e2e/tart/contract.test.ts',
            NEWER_QEMU,
            WARM_CLOUD,
            CONSOLE,
          ],
          env: { BERTH_EMULATOR: 'real', BERTH_TART: 'real' },
          sequence: { groupOrder: 12 },
          ...oneAtATime,
        },
      },
      {
        test: {
          name: 'installed',
          include: ['test/e2e/installed/**/*.test.ts'],
          globalSetup: [TOOLCHAIN, CHART_TOOLS, GUESTS, 'test/e2e/installed/setup.ts'],
          sequence: { groupOrder: 9 },
          ...twoAtATime,
        },
      },
      {
        test: {
          name: 'faults',
          include: ['test/faults/**/*.test.ts'],
          globalSetup: [TOOLCHAIN, SIMULATION, GUESTS, ADBD],
          sequence: { groupOrder: 5 },
          ...twoAtATime,
        },
      },
      {
        test: {
          name: 'hostile',
          include: ['test/hostile/**/*.test.ts'],
          exclude: [SHARES],
          setupFiles: [PROPERTIES],
          globalSetup: [TOOLCHAIN, SIMULATION, GUESTS, 'test/support/setup/sharedcluster.ts'],
          sequence: { groupOrder: 11 },
          ...twoAtATime,
        },
      },
      {
        // These tests compare the times of a tenant beside an attacker with its times alone.
        test: {
          name: 'shares',
          include: [SHARES],
          globalSetup: [TOOLCHAIN, SIMULATION, GUESTS, 'test/support/setup/sharedcluster.ts'],
          sequence: { groupOrder: 13 },
          ...oneAtATime,
        },
      },
      {
        // The last project of a whole run: it compares the rights of the chart with those that the other projects used.
        test: {
          name: 'rights',
          include: ['test/rights/**/*.test.ts'],
          globalSetup: [CHART_TOOLS, 'test/support/setup/sharedcluster.ts'],
          sequence: { groupOrder: 14 },
          ...oneAtATime,
        },
      },
      {
        test: {
          name: 'nat',
          include: ['test/e2e/nat/**/*.test.ts'],
          globalSetup: [TOOLCHAIN, GUESTS],
          sequence: { groupOrder: 6 },
          ...twoAtATime,
        },
      },
    ],
  },
});
