/** Tests the choice of host ports over histories. In these histories, machines come and go, agents end, and other programs take ports. */
import * as fc from 'fast-check';
import { pino } from 'pino';
import { describe, expect, test } from 'vitest';
import type { AutomaticPort, Machine, MachinePort } from '../../api/v1alpha1/machine.ts';
import { portName } from '../../api/v1alpha1/ports.ts';
import { reasonIn, ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { Pod } from '../../kube/core.ts';
import { assertAsyncHistories } from '../../test/support/properties.ts';
import { failed } from './failure.ts';
import type { PodHost } from './host.ts';
import { type MachineRecord, newRecord } from './machine.ts';
import { claimOf } from './pod.ts';
import { awaitedPort, explainPortTaken, holdPorts, holdsPorts } from './ports.ts';

const RANGES = { ssh: '9000-9003', automatic: '9002-9005', screen: '9005-9006' };
const LOGGER = pino({ level: 'silent' });
const SSH: AutomaticPort = { purpose: 'ssh', protocol: 'TCP', guestPort: 22 };
const SCREEN: AutomaticPort = { purpose: 'screen', protocol: 'TCP', guestPort: 5900 };
const WEB: AutomaticPort = { protocol: 'TCP', guestPort: 80 };
const DNS: AutomaticPort = { protocol: 'UDP', guestPort: 53 };
const WISHES = [[SSH], [SSH, SCREEN], [WEB, SSH], [WEB, DNS]];

function podOf(uid: string, hostPort?: number): Pod {
  const ports = hostPort === undefined ? [] : [{ containerPort: hostPort, hostPort }];
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: uid, namespace: 'platform-ci', uid },
    spec: { containers: [{ name: 'machine', image: 'x', ports }] },
  };
}

function recordOf(pod: Pod, automaticPorts: AutomaticPort[] = []): MachineRecord {
  const { name, namespace = '', uid = '' } = pod.metadata;
  const machine = { vm: { namespace, name, uid }, ports: [], automaticPorts } as unknown as Machine;
  return newRecord({ uid, key: `${namespace}/${name}`, driver: 'qemu', machine, claim: claimOf(pod) });
}

function namesOf(record: MachineRecord): string[] {
  return [...record.claim.ports.map(portName), ...record.automaticPorts.map(portName)];
}

/** Model of one host, on which several agents run one after another. Checks of ports take time, so that choices overlap. */
class Model {
  readonly programs = new Set<string>();
  readonly #saved = new Map<string, string>();
  #pods: Pod[] = [];
  #records: MachineRecord[] = [];
  #checks: { name: string; answer: (isUsable: boolean) => void }[] = [];
  #choosing = new Set<string>();
  #host = this.#agent();
  #made = 0;

  #agent(): PodHost {
    const host = {
      ports: RANGES,
      logger: LOGGER,
      boundPods: () => this.#pods,
      records: {
        list: () => this.#records,
        update: (record: MachineRecord, change: Partial<MachineRecord>) => {
          if (this.#host === host && this.#records.includes(record)) {
            this.#save(Object.assign(record, change));
          }
        },
      },
      network: {
        isUsable: (_: string, port: Parameters<typeof portName>[0]) =>
          new Promise<boolean>((answer) => {
            this.#checks.push({ name: portName(port), answer });
          }),
      },
    } as unknown as PodHost;
    return host;
  }

  #save(record: MachineRecord): void {
    this.#saved.set(record.uid, JSON.stringify(record));
  }

  #add(record: MachineRecord): void {
    this.#records.push(record);
    this.#save(record);
  }

  create(wishes: AutomaticPort[]): MachineRecord {
    const pod = podOf(`auto-${(this.#made += 1)}`);
    this.#pods.push(pod);
    const record = recordOf(pod, wishes);
    this.#add(record);
    this.choose(record);
    return record;
  }

  /** Begins the start of a machine that does not run. */
  choose(record: MachineRecord | undefined): void {
    if (record === undefined || record.failure !== undefined || this.#choosing.has(record.uid)) {
      return;
    }
    const choosing = this.#choosing;
    choosing.add(record.uid);
    void holdPorts(this.#host, record)
      .catch((error: unknown) => expect(reasonIn(error)).toBe('NoFreePort'))
      .finally(() => choosing.delete(record.uid));
  }

  bind(hostPort: number): void {
    this.#pods.push(podOf(`fixed-${(this.#made += 1)}`, hostPort));
  }

  /** Admits the bound Pods whose reserved port no machine has. */
  admit(): void {
    for (const pod of this.#pods) {
      const claim = claimOf(pod);
      const isNew = !this.#records.some(({ uid }) => uid === pod.metadata.uid);
      const reserved = this.#records.filter(holdsPorts).flatMap((other) => other.claim.ports.map(portName));
      const isTaken = claim.ports.some((port) => reserved.includes(portName(port)));
      if (isNew && !isTaken && awaitedPort(pod, claim.ports, this.#records) === undefined) {
        this.#add(recordOf(pod));
      }
    }
  }

  remove(record: MachineRecord | undefined): void {
    this.#records = this.#records.filter((one) => one !== record);
    this.#pods = this.#pods.filter(({ metadata }) => metadata.uid !== record?.uid);
    this.#saved.delete(record?.uid ?? '');
  }

  fail(record: MachineRecord | undefined): void {
    if (record !== undefined) {
      this.#save(Object.assign(record, { failure: failed('Crashed', ''), released: true }));
    }
  }

  restartAgent(): void {
    const texts = [...this.#saved.values()];
    this.#records = texts.map((text) => JSON.parse(text) as MachineRecord);
    this.#checks = [];
    this.#choosing = new Set();
    this.#host = this.#agent();
  }

  async answer(index: number): Promise<void> {
    const [check] = this.#checks.splice(index % Math.max(1, this.#checks.length), 1);
    check?.answer(!this.programs.has(check.name));
    await new Promise(setImmediate);
  }

  async answerAll(): Promise<void> {
    while (this.#checks.length > 0) {
      await this.answer(0);
    }
  }

  any(index: number): MachineRecord | undefined {
    return this.#records[index % Math.max(1, this.#records.length)];
  }

  get holders(): MachineRecord[] {
    return this.#records.filter(holdsPorts);
  }

  clear(): void {
    this.#pods = [];
    for (const record of this.#records) {
      this.remove(record);
    }
    this.programs.clear();
  }
}

type Action = (model: Model, index: number) => unknown;

const port = (index: number): number => 9000 + (index % 7);
const ACTIONS: readonly Action[] = [
  (model, index) => model.create(WISHES[index % WISHES.length] ?? []),
  (model, index) => model.choose(model.any(index)),
  (model, index) => model.answer(index),
  (model, index) => model.answer(index),
  (model) => model.answerAll(),
  (model, index) => model.bind(port(index)),
  (model) => model.admit(),
  (model, index) => model.remove(model.any(index)),
  (model, index) => model.fail(model.any(index)),
  (model) => model.restartAgent(),
  (model, index) => model.programs.add(`${port(index)}-tcp`),
  (model, index) => model.programs.delete(`${port(index)}-tcp`),
];

const step = fc.record({ action: fc.constantFrom(...ACTIONS), index: fc.nat(100) });

describe('ports that the host chooses', () => {
  test('no port has two holders, and none is lost', async (context) => {
    await assertAsyncHistories(context, { step, maxLength: 60, numRuns: 500 }, async (history) => {
      const model = new Model();
      for (const { action, index } of history) {
        await action(model, index);
        const held = model.holders.flatMap(namesOf);
        expect(held.toSorted()).toEqual([...new Set(held)].toSorted());
      }
      await model.answerAll();
      model.clear();
      const last = model.create([SSH, SCREEN, WEB, DNS]);
      await model.answerAll();
      expect(namesOf(last)).toEqual(['9003-tcp', '9006-tcp', '9005-tcp', '9005-udp']);
    });
  });

  test('stay over a restart of machine and agent, unless a program takes one', async () => {
    const model = new Model();
    const earlier = model.create([SSH, WEB]);
    await model.answerAll();
    model.create([SSH, WEB]);
    await model.answerAll();
    model.remove(earlier);
    model.restartAgent();
    model.choose(model.any(0));
    await model.answerAll();
    expect(namesOf(model.any(0)!)).toEqual(['9002-tcp', '9004-tcp']);
    model.programs.add('9002-tcp');
    model.choose(model.any(0));
    await model.answerAll();
    expect(namesOf(model.any(0)!)).toEqual(['9003-tcp', '9004-tcp']);
  });

  test('are never ports that the same machine reserves', async () => {
    const record = recordOf(podOf('a', 9003), [SSH]);
    const records = { list: () => [record], update: Object.assign };
    const network = { isUsable: async () => true };
    const host = { ports: RANGES, boundPods: () => [], records, network, logger: LOGGER };
    await holdPorts(host as unknown as PodHost, record);
    expect(namesOf(record)).toEqual(['9003-tcp', '9002-tcp']);
  });

  test('when a range is full, the message names the range, its size and its setting', async () => {
    const full = { isUsable: async () => false };
    const records = { list: () => [], update: () => expect.unreachable() };
    const host = { ports: RANGES, boundPods: () => [], records, network: full, logger: LOGGER };
    await expect(holdPorts(host as unknown as PodHost, recordOf(podOf('a'), [SSH]))).rejects.toMatchObject({
      reason: 'NoFreePort',
      message:
        "No TCP port for the guest port 22 is free on this host in the range 9000-9003 (4 ports; the agent's setting is ports.ssh)",
    });
  });
});

test('a Pod waits for a chosen port of another machine, and does not learn of other namespaces', () => {
  const holder = recordOf(podOf('holder'));
  holder.automaticPorts = [{ protocol: 'TCP', hostPort: 9003, guestPort: 22, automatic: true }];
  const pod = podOf('wants', 9003);
  const claimed = claimOf(pod).ports;
  expect(awaitedPort(pod, claimed, [holder])).toBe(
    'Port 9003/TCP is held by VM holder, for which this host chose the port',
  );
  const foreign = { ...pod, metadata: { ...pod.metadata, namespace: 'platform-qa' } };
  expect(awaitedPort(foreign, claimed, [holder])).toBe(
    'Port 9003/TCP is held by a VM of another namespace, for which this host chose the port',
  );
  expect(awaitedPort(podOf('other', 9002), [{ hostPort: 9002, protocol: 'TCP' }], [holder])).toBeUndefined();
  holder.failure = failed('Crashed', '');
  expect(awaitedPort(pod, claimed, [holder])).toBeUndefined();
});

test('a start whose port was taken in between is tried again, unless a reserved port is still taken', async () => {
  const reserved = { protocol: 'TCP', hostPort: 8000, guestPort: 80 } as const;
  const record = recordOf(podOf('a', reserved.hostPort), [SSH]);
  record.machine = { ...record.machine, ports: [reserved] } as unknown as Machine;
  record.automaticPorts = [{ protocol: 'TCP', hostPort: 9003, guestPort: 22, automatic: true }];
  const error = new ReasonedError('PortTaken', 'Address already in use');
  const explained = async (...taken: number[]): Promise<unknown> => {
    const isUsable = async (_: string, { hostPort }: MachinePort): Promise<boolean> =>
      !taken.includes(hostPort);
    return await explainPortTaken({ network: { isUsable } } as unknown as PodHost, record, error);
  };
  expect(await explained(8000)).toBe(error);
  expect(await explained(8000, 9003)).toBe(error);
  for (const again of [await explained(9003), await explained()]) {
    expect(again).toMatchObject({ message: 'Address already in use' });
    expect(reasonIn(again)).toBeUndefined();
  }
});
