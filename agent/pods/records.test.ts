import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { MachineUsers, ownUser } from '../processes/users.ts';
import { type MachineRecord, newRecord } from './machine.ts';
import { RecordStore } from './records.ts';
import { makeFolder } from '../../test/support/folder.ts';

const CLAIM = { slots: 1, cpuMillis: 1000, memoryBytes: 0, diskBytes: 0, ports: [] };

let directory: string;

beforeEach(() => {
  directory = makeFolder();
});

function saved(uid: string): MachineRecord {
  const record = {
    ...newRecord({ uid, driver: 'qemu', key: `default/${uid}`, machine: undefined, claim: CLAIM }),
    created: true,
  };
  new RecordStore(directory).save(record);
  return record;
}

function fileOf(uid: string): string {
  return join(directory, `${uid}.json`);
}

/** Returns the record as JSON stores it. */
function written(record: MachineRecord): unknown {
  return JSON.parse(JSON.stringify(record));
}

describe('records of machines', () => {
  it('are there again after a restart, with the version of their form', () => {
    const record = saved('a');
    expect(written(new RecordStore(directory).list()[0] as MachineRecord)).toEqual(written(record));
    expect(JSON.parse(readFileSync(fileOf('a'), 'utf8'))).toMatchObject({ version: 1, uid: 'a' });
    expect(readdirSync(directory)).toEqual(['a.json']);
  });

  it.each([
    ['an empty file, as a host leaves it that lost its power', () => '', /JSON/],
    ['half a file', (text: string) => text.slice(0, text.length / 2), /JSON/],
    ['zeros', (text: string) => '\0'.repeat(text.length), /JSON/],
    ['a list', () => '[]', /^file: /],
    [
      'a file without what the machine holds',
      (text: string) => text.replace('"claim"', '"claims"'),
      /^claim: /,
    ],
    ['a later version', (text: string) => text.replace('"version":1', '"version":2'), /^version: /],
    [
      'the record of another machine',
      (text: string) => text.replace('"uid":"a"', '"uid":"z"'),
      /record of another machine, z/,
    ],
  ])('%s is told, and keeps no other from being read', (_, damage, message) => {
    saved('a');
    const other = saved('b');
    writeFileSync(fileOf('a'), damage(readFileSync(fileOf('a'), 'utf8')));
    const records = new RecordStore(directory);
    expect(records.list().map(written)).toEqual([written(other)]);
    expect(records.damaged).toEqual([
      { uid: 'a', path: fileOf('a'), message: expect.stringMatching(message) as string },
    ]);
  });

  it('stay as they were when a change cannot be written', () => {
    const record = saved('a');
    const records = new RecordStore(directory);
    const before = written(record);
    // The agent first writes a temporary file. A folder in its place makes the write fail.
    mkdirSync(`${fileOf('a')}.tmp`);
    expect(() => records.update(record, { created: false, running: true })).toThrow('a.json.tmp');
    expect(written(record)).toEqual(before);
    expect(written(new RecordStore(directory).get('a') as MachineRecord)).toEqual(before);
    rmdirSync(`${fileOf('a')}.tmp`);
    records.update(record, { running: true });
    expect(record.running).toBe(true);
    expect(new RecordStore(directory).get('a')).toMatchObject({ created: true, running: true });
  });

  it('that are damaged are kept for people until the machine is gone', () => {
    const record = saved('a');
    writeFileSync(fileOf('a'), 'damage');
    const records = new RecordStore(directory);
    records.replaceDamaged(record);
    expect(readFileSync(`${fileOf('a')}.damaged`, 'utf8')).toBe('damage');
    expect(new RecordStore(directory)).toMatchObject({ damaged: [] });
    records.remove('a');
    expect(readdirSync(directory)).toEqual([]);
  });
});

describe('users of machines', () => {
  function recordOf(uid: string, records: RecordStore): MachineRecord {
    const record = newRecord({
      uid,
      driver: 'qemu',
      key: `default/${uid}`,
      machine: undefined,
      claim: CLAIM,
    });
    records.save(record);
    return record;
  }

  it('a machine keeps its user over restarts of the agent, and no other machine gets it before the record is gone', () => {
    // A range of three user ids has two users for machines, because the first id is for the programs that read images.
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
    expect(() => ownUser({ users, records }, third)).toThrow(
      'Machines use all 2 Linux users that are set aside for them. Set machines.users.count to a larger value',
    );
    records.remove('a');
    expect(ownUser({ users, records }, third)?.uid).toBe(given[0]);
  });

  it('an agent that is not root gives no users', () => {
    const records = new RecordStore(directory);
    expect(ownUser({ records }, recordOf('a', records))).toBeUndefined();
  });
});
