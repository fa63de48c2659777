import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import { MachineUsers } from '../machines/users.ts';
import type { Accelerator, Driver } from '../drivers/driver.ts';
import { acceleratorOf, chooseDriver, driverOf, type HostDriver, ownUser } from './host.ts';
import { type MachineRecord, newRecord } from './machine.ts';
import { RecordStore } from './records.ts';

const CLAIM = { slots: 1, cpuMillis: 1000, memoryBytes: 0, diskBytes: 0, ports: [] };

function recordOf(uid: string, records: RecordStore): MachineRecord {
  const record = newRecord({ uid, driver: 'qemu', key: `default/${uid}`, machine: undefined, claim: CLAIM });
  records.save(record);
  return record;
}

it('a machine keeps its user over restarts of the agent, and no other machine gets it before the record is gone', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'berth-records-'));
  onTestFinished(async () => await rm(directory, { recursive: true }));
  // A range of three numbers has two users for machines.
  const users = new MachineUsers({ first: 1_900_000_000, count: 3 });
  const earlier = new RecordStore(directory);
  const given = ['a', 'b'].map((uid) => ownUser({ users, records: earlier }, recordOf(uid, earlier))?.uid);
  expect(new Set(given)).toEqual(new Set([1_900_000_001, 1_900_000_002]));

  const records = new RecordStore(directory);
  const kept = ['a', 'b'].flatMap((uid) => {
    const record = records.get(uid);
    return record === undefined ? [] : ownUser({ users, records }, record)?.uid;
  });
  expect(kept).toEqual(given);
  const third = recordOf('c', records);
  expect(() => ownUser({ users, records }, third)).toThrow('machines.users: all 2 users are taken');
  records.remove('a');
  expect(ownUser({ users, records }, third)?.uid).toBe(given[0]);
});

it('an agent that is not root gives no users', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'berth-records-'));
  onTestFinished(async () => await rm(directory, { recursive: true }));
  const records = new RecordStore(directory);
  expect(ownUser({ records }, recordOf('a', records))).toBeUndefined();
});

describe('a host with several drivers', () => {
  function named(name: string, ...architectures: Accelerator['architecture'][]): [string, HostDriver] {
    const accelerators = architectures.map((architecture) => ({ architecture, accelerator: `by ${name}` }));
    return [name, { driver: { name } as Driver, accelerators }];
  }

  const drivers = new Map([named('broken'), named('one', 'amd64'), named('other', 'amd64', 'arm64')]);
  const host = { drivers, architecture: 'amd64' } as const;

  it('makes a machine with the first driver that runs its architecture', () => {
    expect(chooseDriver(host, undefined)).toBe('one');
    expect(chooseDriver({ ...host, architecture: 'arm64' }, undefined)).toBe('other');
    const none = new Map([...drivers].slice(0, 1));
    expect(chooseDriver({ ...host, drivers: none }, undefined)).toBe('broken');
  });

  it('leaves a machine with the driver that made it', () => {
    expect(driverOf(host, { driver: 'broken' }).name).toBe('broken');
    expect(acceleratorOf(host, { driver: 'broken', machine: undefined })).toBeUndefined();
    expect(acceleratorOf(host, { driver: 'other', machine: undefined })).toBe('by other');
    expect(() => driverOf(host, { driver: 'gone' })).toThrow('this agent has no driver "gone"');
  });
});
