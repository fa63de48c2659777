/** Berth installed with helm on real nodes, from the installation to the uninstallation. */
import { hashSync } from 'bcryptjs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { setTimeout as pause } from 'node:timers/promises';
import { SERVER_USERS_SECRET } from '../../../api/v1alpha1/serverusers.ts';
import { PODS } from '../../../kube/core.ts';
import { PAUSE_IMAGE } from '../../../hack/cluster/nodes/configuration.ts';
import { whyNoNodes } from '../../../hack/cluster/nodes/requirements.ts';
import { CHART } from '../../support/chart.ts';
import { isError } from '../../support/loglines.ts';
import { numbered } from '../../fixtures/vms.ts';
import { waitFor } from '../../../hack/wait.ts';
import { NO_TRACES, remains } from './remains.ts';
import { StartedProgram } from '../../wires/startedprogram.ts';
import { Prometheus } from './prometheus.ts';
import { installAsReadmeSays } from './readme.ts';
import { BOOT, Installed, ROLLOUT, SET_UP_MILLISECONDS, SYSTEM, VALUES } from '../../worlds/installed.ts';
import { unless } from '../../support/unless.ts';

const PORT = 8080;
const READER = { namespace: 'monitoring', name: 'prometheus' };
/** The query in docs/reference/metrics.md. */
const PENDING = 'sum by (vm_namespace) (berth_pending_vms)';
/** Memory that no node has. */
const TOO_MUCH = '512Gi';
const PROMISED_CLEAN_MILLISECONDS = 2_000;
const PROMISED_CRASH_MILLISECONDS = 15_000;
/** Template of a Pod that tolerates everything, as Pods of networks and proxies of clusters do. */
const TOLERANT = {
  metadata: { labels: { app: 'tolerant' } },
  spec: {
    nodeSelector: { 'kubernetes.io/os': 'linux' },
    tolerations: [{ operator: 'Exists' }],
    terminationGracePeriodSeconds: 0,
    containers: [{ name: 'any', image: PAUSE_IMAGE }],
  },
};
/** Nodes of the cluster that are no hosts. */
const NODE_NAMES = new Set(['node1', 'node2']);
const SELECTOR = { matchLabels: { app: 'tolerant' } };
/** Number of tolerant Pods of a Deployment. They are more than the nodes. */
const REPLICAS = 3;
/** Time limit for Pods that a scheduler places on a host of Berth. They are removed, and run elsewhere within this time. */
const ELSEWHERE_SECONDS = 60;
/** Values for both nodes. Both agents are replaced at once, because the upgrade test shows that they are replaced one after the other. */
const BOTH_AT_ONCE = {
  ...VALUES,
  agent: { ...VALUES.agent, maxUnavailable: 2 },
  server: { power: { enabled: true, service: { type: 'NodePort' } } },
};
/** Least cost of bcrypt, and time after which a client of a silent server gives up, in seconds. */
const LEAST_COST = 4;
const SILENCE_SECONDS = '5';
/** Addresses of two computers outside the nodes. */
const SOURCES = ['10.200.0.101', '10.200.0.102'] as const;
/** Failed sign-ins after which the power API locks a source out. */
const FAILURES = 20;
const KINDS = [
  'emulators',
  'imagecacheentries',
  'images',
  'isos',
  'runnersets',
  'servers',
  'vmconfigs',
  'vmpools',
  'vms',
  'vmsnapshots',
];
const LOOK = { deadlineMilliseconds: 60_000, intervalMilliseconds: 20 };
/** Number of VMs that are created one after the other while the leader ends. */
const CREATED = 3;
const BETWEEN_CREATIONS_MILLISECONDS = 400;

const unfit = whyNoNodes();

describe('Berth installed with helm', unless(unfit), () => {
  let berth: Installed;

  beforeAll(async () => {
    berth = await Installed.start('helm');
  }, SET_UP_MILLISECONDS);

  afterAll(async () => {
    await berth?.[Symbol.asyncDispose]();
  });

  /** Creates a workload of Pods that tolerate everything, waits until all run, deletes it, and returns the Nodes on which they ran. */
  async function nodesOf(
    kind: 'DaemonSet' | 'Deployment',
    name: string,
    spec: object,
  ): Promise<Set<string | undefined>> {
    const metadata = { name, namespace: 'default' };
    const workload = {
      apiVersion: 'apps/v1',
      kind,
      metadata,
      spec: { ...spec, selector: SELECTOR, template: TOLERANT },
    };
    await berth.cluster.kubectl(['apply', '--filename', '-'], { input: JSON.stringify(workload) });
    const named = `${kind.toLowerCase()}/${name}`;
    await berth.cluster.kubectl(['rollout', 'status', named, `--timeout=${ELSEWHERE_SECONDS}s`], {
      timeoutMilliseconds: (ELSEWHERE_SECONDS + 10) * 1000,
    });
    const { items } = await berth.cluster.client().list(PODS, { namespace: 'default' });
    const running = items.filter(({ metadata: { deletionTimestamp } }) => deletionTimestamp === undefined);
    await berth.cluster.kubectl(['delete', kind.toLowerCase(), name]);
    await waitFor('its Pods to be gone', async () => {
      return (await berth.cluster.client().list(PODS, { namespace: 'default' })).items.length === 0;
    });
    return new Set(running.map((pod) => pod.spec.nodeName));
  }

  /**
   * Calls the power API from an address outside, at the port of a node with a replica. Returns the status of the answer, or `000` if there is
   * none.
   */
  async function callPower(source: string, password: string, index: number): Promise<string> {
    const replicas = await berth.pods('server');
    const names = [...new Set(replicas.map(({ spec }) => spec.nodeName ?? ''))].toSorted((a, b) =>
      a.localeCompare(b, 'en'),
    );
    const node = berth.nodes.find(({ name }) => name === names[index % names.length]);
    const get = ['get', 'service', '-n', SYSTEM, 'berth-power', '-o', 'jsonpath={.spec.ports[0].nodePort}'];
    const { stdout: port } = await berth.cluster.kubectl(get);
    const reported = ['--output', '/dev/null', '--write-out', '%{http_code}', '--max-time', SILENCE_SECONDS];
    const url = `https://${node?.address}:${port}/core/api/servers`;
    const call = [
      '--silent',
      '--insecure',
      '--interface',
      source,
      '--user',
      `ann:${password}`,
      ...reported,
      url,
    ];
    return await berth.fromOutside('curl', ...call).catch((error: { stdout?: string }) => error.stdout ?? '');
  }

  describe('helm install', () => {
    test('with the commands of README.md makes each labelled node a host', async () => {
      const printed = await installAsReadmeSays(berth);
      for (const { name } of berth.nodes) {
        expect(printed).toContain(`${name}-berth`);
      }
    });

    test('runs the operator on both nodes after an upgrade to other values', async () => {
      const values = { ...BOTH_AT_ONCE, metrics: { readers: [READER], hosts: { enabled: false } } };
      await berth.helm(['upgrade', 'berth', CHART], values);
      await berth.rolledOut();
      const nodes = (await berth.pods('operator')).map((pod) => pod.spec?.nodeName);
      expect(new Set(nodes)).toEqual(new Set(['node1', 'node2']));
    });

    test('a VM runs, its page is fetched, and its console is read', async () => {
      await berth.createGuestImage('guest');
      await berth.createVM('steady', 'guest', PORT);
      await berth.vms.waitForCondition('steady', 'Ready', { status: 'True' }, BOOT);
      expect(await berth.page('steady', PORT)).toMatchObject({ boots: '1' });
      const { stdout } = await berth.cluster.kubectl(['logs', '--namespace', 'platform-default', 'steady']);
      expect(stdout).toContain('Linux version');
    });

    test('the HTTP API shows its page, with all files from the image', async () => {
      await berth.rollout('deployment/berth-server');
      const address = await berth.serviceAddress('berth-server');
      const fetch = async (path: string, ...more: string[]): Promise<string> =>
        (await berth.nodes[0]?.run('curl', '--silent', '--insecure', ...more, `https://${address}${path}`)) ??
        '';
      const page = await fetch('/api/v1/swagger');
      const files = [...page.matchAll(/ (?:src|href)="(\/[^"]+)"/g)].map(([, path = '']) => path);
      expect(files).toHaveLength(3);
      const reported = [
        '--output',
        '/dev/null',
        '--write-out',
        '%{http_code} %{content_type} %{size_download}',
      ];
      for (const file of files) {
        const type = file.endsWith('.css') ? 'css' : 'javascript';
        expect(await fetch(file, ...reported)).toMatch(new RegExp(`^200 text/${type}; charset=utf-8 [1-9]`));
      }
    });

    test('the power API locks out a source at all replicas behind a Service, and serves another source', async () => {
      const users = `--from-literal=htpasswd=ann:${hashSync('right', LEAST_COST)}`;
      await berth.cluster.kubectl(['create', 'secret', 'generic', SERVER_USERS_SECRET, '-n', SYSTEM, users]);
      for (const source of SOURCES) {
        await berth.fromOutside('ip', 'address', 'add', `${source}/24`, 'dev', 'nodes');
      }
      const [locked, other] = SOURCES;
      await waitFor('the user', async () => (await callPower(other, 'right', 0)) === '200', ROLLOUT);
      for (let failure = 0; failure < FAILURES; failure += 1) {
        expect(await callPower(locked, 'wrong', failure)).toBe('401');
      }
      const answers = [0, 1].flatMap((node) => [
        callPower(locked, 'right', node),
        callPower(other, 'right', node),
      ]);
      expect(await Promise.all(answers)).toEqual(['000', '200', '000', '200']);
      await berth.cluster.kubectl(['delete', 'secret', SERVER_USERS_SECRET, '-n', SYSTEM]);
      await berth.cluster.kubectl(['delete', 'leases', '-n', SYSTEM, '-l', 'berth.dev/lockout']);
    });

    test('a VM runs on when its agent is deleted, and beside the next agent', async () => {
      const { nodeName } = (await berth.vms.get('steady')).status ?? {};
      const before = await berth.page('steady', PORT);
      const [agent] = (await berth.pods('agent')).filter((pod) => `${pod.spec?.nodeName}-berth` === nodeName);
      await berth.cluster.kubectl(['delete', 'pod', '--namespace', SYSTEM, agent?.metadata.name ?? '']);
      expect(await berth.page('steady', PORT)).toMatchObject({ boot_id: before['boot_id'] });
      await waitFor('another agent', async () => (await berth.pods('agent')).length === 2, ROLLOUT);
      await berth.rolledOut();
      expect(await berth.page('steady', PORT)).toMatchObject({ boot_id: before['boot_id'], boots: '1' });
      expect((await berth.vms.get('steady')).status?.phase).toBe('Running');
    });

    test('DaemonSets and Deployments that tolerate everything run beside Berth, and not on its hosts', async () => {
      expect(await nodesOf('DaemonSet', 'on-every-node', {})).toEqual(NODE_NAMES);
      expect(await nodesOf('Deployment', 'kept-away', { replicas: REPLICAS })).toEqual(NODE_NAMES);
    });

    test('without the mutating policy, a Deployment that tolerates everything soon runs beside Berth', async () => {
      await berth.cluster.kubectl(['delete', 'mutatingadmissionpolicybinding', 'berth-foreign-pods']);
      expect(await nodesOf('Deployment', 'moved', { replicas: REPLICAS })).toEqual(NODE_NAMES);
    });

    test('logs of operator and agents are JSON without errors, and name reconciliations by their ids', async () => {
      const lines = await berth.said();
      expect(lines.filter(isError)).toEqual([]);
      expect(lines.filter(({ reconcileID }) => reconcileID !== undefined).length).toBeGreaterThan(0);
    });
  });

  describe('Prometheus', () => {
    test('can sum the metrics of the operator, and finds every host', async () => {
      await berth.cluster.kubectl(['create', 'namespace', READER.namespace]);
      await berth.cluster.kubectl(['create', 'serviceaccount', READER.name, '--namespace', READER.namespace]);
      const account = `--serviceaccount=${READER.namespace}:${READER.name}`;
      const role = '--clusterrole=berth-host-metrics-reader';
      await berth.cluster.kubectl(['create', 'clusterrolebinding', 'prometheus', role, account]);
      const prometheus = await Prometheus.start(berth, READER);
      await berth.vms.create('waiting', { image: 'guest', memory: TOO_MUCH });
      expect(await prometheus.untilSays(PENDING, { 'platform-default': 1 })).toBe(true);
      const answering = { 'berth-hosts': 2, 'berth-operator': 1, 'berth-server': 2 };
      expect(await prometheus.untilSays('sum by (job) (up)', answering)).toBe(true);
      const images = 'count by (node) (berth_image_store_images)';
      expect(await prometheus.untilSays(images, { 'node1-berth': 1, 'node2-berth': 1 })).toBe(true);
      await berth.vms.delete('waiting');
      expect(await prometheus.untilSays(PENDING, { 'platform-default': 0 })).toBe(true);
    });

    test('reads the Service on port 443 with a token that has the right', async () => {
      const address = await berth.serviceAddress();
      const status = async (token?: string): Promise<string> => {
        const header = token === undefined ? [] : ['--header', `Authorization: Bearer ${token}`];
        const answer = ['--output', '/dev/null', '--write-out', '%{http_code}'];
        return (
          (await berth.nodes[0]?.run(
            'curl',
            '--silent',
            '--insecure',
            ...answer,
            ...header,
            `https://${address}:443/metrics`,
          )) ?? ''
        );
      };
      const tokenOf = async (name: string, namespace: string): Promise<string> =>
        (await berth.cluster.kubectl(['create', 'token', name, '--namespace', namespace])).stdout.trim();
      expect(await status()).toBe('401');
      expect(await status(await tokenOf('default', READER.namespace))).toBe('403');
      expect(await status(await tokenOf(READER.name, READER.namespace))).toBe('200');
    });
  });

  describe('the leader ends while VMs are created', () => {
    /** Creates VMs one after the other, until well after the leader has ended. Rejects with the first refusal. */
    function creating(prefix: string): { names: string[]; created: Promise<void> } {
      const names = numbered(prefix, CREATED);
      const create = async (): Promise<void> => {
        for (const name of names) {
          await berth.vms.create(name, { image: 'guest', cpu: 1, memory: '128Mi' });
          await pause(BETWEEN_CREATIONS_MILLISECONDS);
        }
      };
      return { names, created: create() };
    }

    /** Returns the name of the Pod that leads after `before`. */
    async function nextLeader(before: string): Promise<string> {
      return await waitFor(
        'another leader',
        async () => {
          const leader = await berth.leader();
          return leader !== before && leader;
        },
        LOOK,
      );
    }

    /** Follows the log of an operator's Pod. */
    function follow(name: string): StartedProgram {
      const { kubectlPath, kubeconfig } = berth.cluster;
      const logs = ['logs', '--follow', '--namespace', SYSTEM, name];
      return new StartedProgram(kubectlPath, ['--kubeconfig', kubeconfig, ...logs]);
    }

    /** Waits until the log has a line with this message, and returns its time. */
    async function timeOf(message: string, log: StartedProgram): Promise<number> {
      const line = new RegExp(`"time":"([^"]+)",[^\\n]*"msg":"${message}"`);
      const [, time] = await log.prints(line, LOOK.deadlineMilliseconds);
      return Date.parse(time ?? '');
    }

    async function allRunThenGo(names: readonly string[]): Promise<void> {
      for (const name of names) {
        await berth.vms.waitForPhase(name, 'Running', undefined, BOOT);
      }
      await Promise.all(names.map((name) => berth.vms.delete(name)));
      await berth.rolledOut();
    }

    /** Waits until the Service of the metrics selects only the leader. */
    async function serviceFollows(): Promise<void> {
      const follows = async (): Promise<boolean> => {
        const leader = await berth.leader();
        return (
          leader !== undefined && JSON.stringify(await berth.behindService()) === JSON.stringify([leader])
        );
      };
      await waitFor('the Service to lead to the leader', follows, ROLLOUT);
    }

    async function leaderPod(): Promise<{ name: string; node: string }> {
      const name = await waitFor('a leader', () => berth.leader(), LOOK);
      const pod = (await berth.pods('operator')).find(({ metadata }) => metadata.name === name);
      return { name, node: pod?.spec?.nodeName ?? '' };
    }

    test.each([
      [
        'its node is drained',
        (_name: string, node: string) => ['drain', node, '--ignore-daemonsets', '--delete-emptydir-data'],
      ],
      ['its Pod is deleted', (name: string) => ['delete', 'pod', '--namespace', SYSTEM, name]],
    ])('%s: another leads within 2 s, and no VM is refused or lost', async (what, command) => {
      const { name, node } = await leaderPod();
      const log = follow(name);
      await timeOf('leading', log);
      const { names, created } = creating(what.includes('node') ? 'drained' : 'deleted');
      const done = berth.cluster.kubectl(command(name, node));
      const next = follow(await nextLeader(name));
      // The time before the kubelet tells the operator to stop is not the operator's.
      const milliseconds = (await timeOf('leading', next)) - (await timeOf('stopping', log));
      for (const one of [log, next]) {
        one.kill();
      }
      process.stderr.write(`${what}: another led after ${milliseconds} ms\n`);
      expect(milliseconds).toBeLessThan(PROMISED_CLEAN_MILLISECONDS);
      await serviceFollows();
      await Promise.all([done, created]);
      await berth.cluster.kubectl(['uncordon', node]);
      await allRunThenGo(names);
    });

    test('it is killed without warning: another leads within 15 s, and no VM is refused or lost', async () => {
      const { name, node } = await leaderPod();
      const { names, created } = creating('killed');
      await berth.nodes
        .find((one) => one.name === node)
        ?.run('pkill', '-KILL', '-f', '/opt/berth/operator.mjs');
      const began = performance.now();
      await nextLeader(name);
      const milliseconds = performance.now() - began;
      process.stderr.write(`killed: another led after ${Math.round(milliseconds)} ms\n`);
      expect(milliseconds).toBeLessThan(PROMISED_CRASH_MILLISECONDS);
      await serviceFollows();
      await created;
      await allRunThenGo(names);
    });
  });

  describe('helm uninstall', () => {
    test('refuses while a VM exists, which runs on', async () => {
      const before = await berth.page('steady', PORT);
      await expect(berth.helm(['uninstall', 'berth'])).rejects.toThrow(/VM platform-default\/steady/);
      await berth.rolledOut();
      expect(await berth.page('steady', PORT)).toMatchObject({ boot_id: before['boot_id'] });
    });

    test('after a refusal, a rollback and an upgrade bring the release back', async () => {
      await berth.helm(['rollback', 'berth', '1']);
      await berth.helm(['upgrade', 'berth', CHART], BOTH_AT_ONCE);
      await berth.rolledOut();
      expect((await berth.vms.get('steady')).status?.phase).toBe('Running');
    });

    test('without VMs, leaves the kinds, objects of users, and nothing on the hosts', async () => {
      await berth.cluster.kubectl(['delete', 'vms', '--all', '--namespace', 'platform-default']);
      await berth.helm(['uninstall', 'berth']);
      const kept = [
        ...KINDS.map((kind) => `customresourcedefinition/${kind}.berth.dev`),
        'image/platform-default/guest',
        'namespace/platform-default',
        'rolebinding/platform-default/berth-role-admin',
        'rolebinding/platform-default/berth-role-dev',
      ];
      const { objects, hosts } = await remains(berth, kept);
      expect(objects).toEqual(kept);
      expect(hosts).toEqual(berth.nodes.map(() => NO_TRACES));
      // No operator runs, so the Image must have no finalizer of Berth.
      await berth.cluster.kubectl(['delete', 'image', '--namespace', 'platform-default', 'guest']);
    });
  });
});
