/**
 * Tests the planner's guarantees over thousands of histories. Changes of the wanted state, actions of the machine and faults of the host
 * come in any order. A model of a machine carries out the steps.
 */
import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import type { Desired } from '../../api/v1alpha1/machine.ts';
import { assertHistories } from '../../test/support/properties.ts';
import type { MachineState } from '../drivers/driver.ts';
import type { DiskWish } from './diskguard.ts';
import { type MachineRecord, newRecord, type MachineStep } from './machine.ts';
import { plan, type Situation } from './plan.ts';

const DESIRED: Desired = { powerState: 'Running', restartPolicy: 'Never', cpu: 1, memoryBytes: 1 };
/** Limit of steps. No sequence of steps towards one wanted state is as long as this. */
const MOST_STEPS = 12;

type Happening =
  | { kind: 'desire'; change: Partial<Desired> }
  | { kind: 'end'; reason: 'GuestShutdown' | 'Crashed' }
  | { kind: 'reboot' }
  | { kind: 'fence'; fenced: boolean }
  | { kind: 'delete' }
  | { kind: 'fault'; fault: string | undefined }
  | { kind: 'disk'; wish: DiskWish | undefined }
  | { kind: 'room'; lacking: string | undefined }
  | { kind: 'wait'; milliseconds: number };

const happening: fc.Arbitrary<Happening> = fc.oneof(
  fc.record({
    kind: fc.constant('desire' as const),
    change: fc.record(
      {
        power: fc.constantFrom('Running' as const, 'Stopped' as const, 'Suspended' as const),
        restartPolicy: fc.constantFrom('Never' as const, 'OnFailure' as const, 'Always' as const),
        restartRequestedAt: fc.constantFrom('1', '2', '3'),
        revertRequestedAt: fc.constantFrom('1', '2', '3'),
      },
      { requiredKeys: [] },
    ),
  }),
  fc.record({
    kind: fc.constant('end' as const),
    reason: fc.constantFrom('GuestShutdown' as const, 'Crashed' as const),
  }),
  fc.record({ kind: fc.constant('reboot' as const) }),
  fc.record({ kind: fc.constant('fence' as const), fenced: fc.boolean() }),
  fc.record({ kind: fc.constant('delete' as const) }),
  fc.record({ kind: fc.constant('fault' as const), fault: fc.constantFrom(undefined, 'no bridge') }),
  fc.record({ kind: fc.constant('disk' as const), wish: fc.constantFrom(undefined, 'pause', 'unpause') }),
  fc.record({ kind: fc.constant('room' as const), lacking: fc.constantFrom(undefined, 'no room') }),
  fc.record({ kind: fc.constant('wait' as const), milliseconds: fc.integer({ min: 1, max: 900_000 }) }),
);

/** Model of a host with one machine. The machine follows the planned steps, and also changes by itself. */
class Model {
  record: MachineRecord = newRecord({
    driver: 'qemu',
    uid: 'uid',
    key: 'ns/name',
    machine: undefined,
    claim: { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] },
  });
  state: MachineState = { kind: 'absent' };
  desired: Desired = DESIRED;
  deletion: { deadline: number } | undefined;
  fenced = false;
  unseen = false;
  fault: string | undefined;
  disk: DiskWish | undefined;
  noRoom: string | undefined;
  now = 0;
  readonly steps: MachineStep[] = [];

  situation(): Situation {
    return {
      desired: this.desired,
      state: this.state,
      record: this.record,
      deletion: this.deletion,
      fenced: this.fenced,
      unseen: this.unseen,
      activeDeadline: undefined,
      networkFault: this.fault,
      graceMilliseconds: 30_000,
      diskWish: this.disk,
      noRoomToSuspend: this.noRoom,
    };
  }

  happen(event: Happening): void {
    switch (event.kind) {
      case 'desire':
        this.desired = { ...this.desired, ...event.change };
        break;
      case 'end':
        if (this.state.kind === 'running') {
          this.state = { kind: 'exited', reason: event.reason, message: 'x' };
        }
        break;
      case 'reboot':
        if (this.state.kind === 'running') {
          this.state = { kind: 'exited', reason: 'Crashed', message: 'x' };
        }
        this.unseen = this.record.running;
        break;
      case 'fence':
        this.fenced = event.fenced;
        break;
      case 'delete':
        this.deletion ??= { deadline: this.now + 30_000 };
        break;
      case 'fault':
        this.fault = event.fault;
        break;
      case 'disk':
        this.disk = event.wish;
        break;
      case 'room':
        this.noRoom = event.lacking;
        break;
      default:
        this.now += event.milliseconds;
    }
  }

  /** Takes steps until the machine is as wanted or waits. Fails after too many steps. */
  stabilize(): MachineStep {
    for (let count = 0; count < MOST_STEPS; count += 1) {
      const step = plan(this.situation(), this.now);
      this.check(step);
      if (step.kind === 'reached' || step.kind === 'wait') {
        return step;
      }
      this.steps.push(step);
      this.obey(step);
    }
    throw new Error(`no end: ${this.steps.map(({ kind }) => kind).join(' ')}`);
  }

  check(step: MachineStep): void {
    const brings = ['create', 'start', 'resume'].includes(step.kind);
    if (this.deletion !== undefined || this.record.failure !== undefined) {
      expect(brings).toBe(false);
    }
    if (this.fenced && !this.record.acknowledged) {
      expect(brings).toBe(false);
    }
    if (step.kind === 'remove') {
      expect(this.deletion).toBeDefined();
      expect(this.record.released, 'process and network are given back first').toBe(true);
      expect(['running', 'suspended']).not.toContain(this.state.kind);
    }
    if (step.kind === 'start') {
      expect(this.state.kind).not.toBe('running');
    }
    if (step.kind === 'pause' || step.kind === 'unpause') {
      expect(step.kind).toBe(this.disk);
    }
    if (step.kind === 'suspend') {
      expect(this.noRoom).toBeUndefined();
    }
    if (step.kind === 'create') {
      expect(this.record.created).toBe(false);
    }
  }

  obey(step: MachineStep): void {
    const { record, desired } = this;
    switch (step.kind) {
      case 'note':
        Object.assign(record, step.change);
        break;
      case 'fail':
        record.failure = step.failure;
        break;
      case 'create':
        record.created = true;
        this.state = { kind: 'stopped' };
        break;
      case 'start':
      case 'resume':
        this.state = { kind: 'running', pid: 1, guestStarted: true, paused: false };
        this.unseen = false;
        Object.assign(record, { running: true, everRan: true, acknowledged: true, released: false });
        if (step.kind === 'start') {
          Object.assign(record, { end: undefined, restartedAt: desired.restartRequestedAt });
        }
        break;
      case 'stop':
        this.state = { kind: 'stopped' };
        Object.assign(record, { running: false, end: undefined });
        break;
      case 'pause':
      case 'unpause':
        this.state = {
          kind: 'running',
          pid: 1,
          guestStarted: step.kind === 'unpause',
          paused: step.kind === 'pause',
        };
        break;
      case 'suspend':
        this.state = { kind: 'suspended' };
        record.running = false;
        break;
      case 'revert':
        this.state = { kind: 'stopped' };
        Object.assign(record, { revertedAt: desired.revertRequestedAt, end: undefined });
        break;
      case 'release':
        if (this.state.kind !== 'absent') {
          this.state = { kind: 'stopped' };
        }
        Object.assign(record, { running: false, released: true });
        break;
      default:
        this.state = { kind: 'absent' };
        record.created = false;
    }
  }
}

/** Events in the history of an emulator. The Pod of an emulator always wants it to run, without restarts. */
const happeningOfEmulator = happening.filter(({ kind }) => kind !== 'desire' && kind !== 'room');

function emulatorModel(): Model {
  const model = new Model();
  model.record = { ...model.record, emulator: { exposure: 'PairedVM' } as EmulatorMachine };
  return model;
}

describe('over any history', () => {
  test('an emulator runs, waits for its host or has failed, and its own end is a failure', (context) => {
    assertHistories(context, { step: happeningOfEmulator, maxLength: 25, numRuns: 2_000 }, (history) => {
      const model = emulatorModel();
      for (const event of history) {
        const wasRunning = model.state.kind === 'running';
        model.happen(event);
        const step = model.stabilize();
        expectRest(model, step);
        const { failure } = model.record;
        const isDown = model.deletion !== undefined || failure !== undefined || step.kind === 'wait';
        expect(isDown || model.state.kind === 'running', 'it never rests without a process').toBe(true);
        if (event.kind === 'end' && wasRunning) {
          expect(failure?.reason, 'its own end is a failure').toBe('Crashed');
        }
      }
      const foreign = model.steps.filter(({ kind }) =>
        ['stop', 'suspend', 'resume', 'revert'].includes(kind),
      );
      expect(foreign).toEqual([]);
    });
  });

  test('every step is allowed where it is taken, and the machine comes to rest as wanted', (context) => {
    assertHistories(context, { step: happening, maxLength: 25, numRuns: 5_000 }, (history) => {
      const model = new Model();
      for (const event of history) {
        model.happen(event);
        expectRest(model, model.stabilize());
      }
    });
  });

  test('a deleted machine leaves nothing', (context) => {
    assertHistories(context, { step: happening, maxLength: 15, numRuns: 2_000 }, (history) => {
      const model = new Model();
      for (const event of history) {
        model.happen(event);
        model.stabilize();
      }
      model.happen({ kind: 'delete' });
      expect(model.stabilize().kind).toBe('reached');
      expect(model.state.kind).toBe('absent');
      expect(model.record.released).toBe(true);
    });
  });
});

function expectRest(model: Model, step: MachineStep): void {
  const { state, record, desired } = model;
  if (model.deletion !== undefined) {
    expect(state.kind).toBe('absent');
  } else if (record.failure !== undefined || (model.fenced && !record.acknowledged)) {
    expect(state.kind).not.toBe('running');
  } else if (step.kind === 'reached') {
    if (desired.powerState === 'Stopped') {
      expect(['stopped', 'exited']).toContain(state.kind);
    }
    if (desired.powerState === 'Suspended') {
      expect(state.kind).not.toBe('running');
    }
    if (desired.powerState === 'Running' && record.end?.how !== 'GuestShutdown') {
      expect(state.kind).toBe('running');
    }
    expect(record.revertedAt).toBe(desired.revertRequestedAt);
    if (state.kind === 'running') {
      expect(record.restartedAt).toBe(desired.restartRequestedAt);
    }
  }
  if (state.kind === 'running' && model.disk !== undefined) {
    expect(state.paused).toBe(model.disk === 'pause');
  }
}

function running(change: Partial<MachineRecord> = {}, desired: Partial<Desired> = {}): Model {
  const model = new Model();
  model.stabilize();
  model.desired = { ...DESIRED, ...desired };
  Object.assign(model.record, { startedAt: new Date(0).toISOString() }, change);
  model.steps.length = 0;
  return model;
}

function kinds(model: Model): string[] {
  return model.steps.map(({ kind }) => kind);
}

describe('the end of a guest', () => {
  test.each([
    ['Never', 'GuestShutdown', 'reached', ['note']],
    ['Never', 'Crashed', 'reached', ['note', 'fail', 'release']],
    ['OnFailure', 'GuestShutdown', 'reached', ['note']],
    ['OnFailure', 'Crashed', 'reached', ['note', 'start']],
    ['Always', 'GuestShutdown', 'reached', ['note', 'start']],
    ['Always', 'Crashed', 'reached', ['note', 'start']],
  ] as const)('under %s after %s', (restartPolicy, reason, rest, steps) => {
    const model = running({}, { restartPolicy });
    model.happen({ kind: 'end', reason });
    expect(model.stabilize().kind).toBe(rest);
    expect(kinds(model)).toEqual(steps);
  });

  test.each(['Never', 'OnFailure', 'Always'] as const)(
    'together with the host starts it again from its own disk, also under %s',
    (restartPolicy) => {
      const model = running({}, { restartPolicy });
      model.happen({ kind: 'reboot' });
      model.stabilize();
      expect(kinds(model)).toEqual(['note', 'start']);
    },
  );

  test('that comes again and again is waited for longer and longer, and a long run forgives', () => {
    const model = running({}, { restartPolicy: 'Always' });
    const crash = (): MachineStep => {
      model.happen({ kind: 'end', reason: 'Crashed' });
      return model.stabilize();
    };
    expect(crash().kind).toBe('reached');
    expect(crash()).toEqual({ kind: 'wait', until: model.now + 10_000 });
    model.happen({ kind: 'wait', milliseconds: 10_000 });
    model.stabilize();
    expect(crash()).toEqual({ kind: 'wait', until: model.now + 20_000 });
    model.happen({ kind: 'wait', milliseconds: 20_000 });
    model.stabilize();
    model.record.startedAt = new Date(model.now).toISOString();
    model.happen({ kind: 'wait', milliseconds: 600_000 });
    expect(crash().kind).toBe('reached');
  });
});

test('a machine whose end is in the future, after the clock was set back, is started at once', () => {
  const model = running({}, { restartPolicy: 'Always' });
  for (const step of ['reached', 'wait']) {
    model.happen({ kind: 'end', reason: 'Crashed' });
    expect(model.stabilize().kind).toBe(step);
  }
  model.now -= 3_600_000;
  expect(model.stabilize().kind).toBe('reached');
  expect(model.state.kind).toBe('running');
});

test('a machine whose folder vanished is not made again', () => {
  const model = running();
  model.state = { kind: 'absent' };
  model.stabilize();
  expect(model.record.failure?.reason).toBe('DiskLost');
});

test('an emulator that failed before its first start gives its user back', () => {
  const model = emulatorModel();
  const failure = { reason: 'CreateFailed', message: 'x', exitCode: 1, graceMilliseconds: 0 } as const;
  Object.assign(model.record, { failure, runAs: { uid: 1, gid: 1 } });
  expect(plan(model.situation(), 0)).toEqual({ kind: 'release', graceMilliseconds: 0 });
  model.record.runAs = undefined;
  expect(plan(model.situation(), 0)).toEqual({ kind: 'reached' });
});

test('a network that cannot be healed fails a machine that has never run, and no other', () => {
  const fresh = new Model();
  fresh.happen({ kind: 'fault', fault: 'no bridge' });
  fresh.stabilize();
  expect(fresh.record.failure?.reason).toBe('NATSelfHealFailed');
  const old = running();
  old.happen({ kind: 'fault', fault: 'no bridge' });
  expect(old.stabilize().kind).toBe('reached');
  expect(old.state.kind).toBe('running');
});

test('a host that is cut off destroys what nobody has seen running, and keeps the rest', () => {
  const unseen = running({ acknowledged: false });
  unseen.happen({ kind: 'fence', fenced: true });
  unseen.stabilize();
  expect(unseen.state.kind).toBe('stopped');
  unseen.happen({ kind: 'fence', fenced: false });
  unseen.stabilize();
  expect(unseen.state.kind).toBe('running');
  const seen = running();
  seen.happen({ kind: 'fence', fenced: true });
  seen.stabilize();
  expect(seen.state.kind).toBe('running');
});

test('the active deadline ends a machine with what grace its Pod has', () => {
  const model = running();
  const step = plan({ ...model.situation(), activeDeadline: 5 }, 5);
  expect(step).toMatchObject({
    kind: 'fail',
    failure: { reason: 'DeadlineExceeded', graceMilliseconds: 30_000 },
  });
});

test('a machine that is paused stays so when asked to go on by nobody, and is stopped, suspended and removed as any other', () => {
  const paused = (): Model => {
    const model = running();
    model.happen({ kind: 'disk', wish: 'pause' });
    model.stabilize();
    model.happen({ kind: 'disk', wish: undefined });
    model.stabilize();
    expect(kinds(model)).toEqual(['pause']);
    expect(model.state).toMatchObject({ paused: true });
    model.steps.length = 0;
    return model;
  };
  for (const [power, steps] of [
    ['Stopped', ['stop']],
    ['Suspended', ['suspend']],
  ] as const) {
    const model = paused();
    model.happen({ kind: 'desire', change: { powerState: power } });
    model.stabilize();
    expect(kinds(model)).toEqual(steps);
  }
  const gone = paused();
  gone.happen({ kind: 'delete' });
  gone.stabilize();
  expect(kinds(gone)).toEqual(['release', 'remove']);
});

test('a machine whose memory has no room is not suspended until it has, and may be paused meanwhile', () => {
  const model = running();
  model.happen({ kind: 'room', lacking: 'too large' });
  model.happen({ kind: 'desire', change: { powerState: 'Suspended' } });
  expect(model.stabilize()).toEqual({ kind: 'wait', until: model.now + 5_000, noRoomToSuspend: 'too large' });
  model.happen({ kind: 'disk', wish: 'pause' });
  model.stabilize();
  expect(kinds(model)).toEqual(['pause']);
  model.happen({ kind: 'room', lacking: undefined });
  expect(model.stabilize().kind).toBe('reached');
  expect(kinds(model)).toEqual(['pause', 'suspend']);
});

test.each([
  [undefined, { reason: 'KeyDiffers' }],
  [{ fromMemory: true } as const, { reason: 'Renewed' }],
])(
  'a machine that an agent started and did not live to write down has run, and tells how its guest began: %j',
  (how, warmStart) => {
    const model = new Model();
    model.state = { kind: 'running', pid: 1, guestStarted: true, paused: false, ...how };
    const known = {
      created: true,
      running: false,
      fresh: true,
      warmStart: { reason: 'KeyDiffers' },
    } as const;
    model.record = { ...model.record, ...known };
    const step = plan(model.situation(), Date.parse('2030-01-01T00:00:00Z'));
    const change = { running: true, everRan: true, fresh: false, startedAt: '2030-01-01T00:00:00Z' };
    expect(step).toMatchObject({ kind: 'note', change });
    model.stabilize();
    expect(model.record.warmStart).toEqual(warmStart);
  },
);

test('a machine that is off has no size of a run, also after a failed start, or a stop during which the agent was restarted', () => {
  const exited = { kind: 'exited', reason: 'GuestShutdown', message: 'x' } as const;
  for (const state of [{ kind: 'stopped' }, exited, { kind: 'suspended' }] as const) {
    const model = new Model();
    const startedWith = { cpu: 1, memoryBytes: 1 };
    model.state = state;
    model.record = { ...model.record, created: true, everRan: true, startedWith };
    model.happen({ kind: 'desire', change: { powerState: 'Suspended' } });
    expect(model.stabilize().kind).toBe('reached');
    expect(model.record.startedWith).toEqual(state.kind === 'suspended' ? startedWith : undefined);
  }
});
