import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import type { Format } from '../output.ts';
import { parseGoal, reached, wait, formatGoal } from './wait.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { makeTerminal } from '../../test/fixtures/terminals.ts';

let folder: string;
let server: Server;
/** Text that the commands have written to both output streams. */
let written: string;

beforeEach(async () => {
  written = '';
  folder = await mkdtemp(join(tmpdir(), 'berth-wait-'));
  // The namespace has no VM.
  server = createServer(({ url = '' }, response) => {
    const isList = url.split('?')[0]?.endsWith('/vms') === true;
    const message = `vms.berth.dev "${url.split('/').at(-1)}" not found`;
    response.writeHead(isList ? 200 : 404, { 'content-type': 'application/json' });
    response.end(JSON.stringify(isList ? { items: [], metadata: {} } : { message, reason: 'NotFound' }));
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
});

afterEach(async () => {
  server.closeAllConnections();
  server.close();
  await rm(folder, { recursive: true });
});

/** Waits until the VMs `a` and `b` have reached the state. */
async function waitFor(state: string, output: Format): Promise<void> {
  const kubeconfig = join(folder, 'kubeconfig');
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const document = {
    clusters: [{ name: 'a', cluster: { server: url } }],
    contexts: [{ name: 'a', context: { cluster: 'a' } }],
  };
  await writeFile(kubeconfig, JSON.stringify(document));
  const out = (text: string) => void (written += text);
  const terminal = makeTerminal({ environment: { HOME: folder }, out, err: out });
  const globals = { kubeconfig, context: 'a', output };
  await wait(terminal, globals, { names: ['a', 'b'], goal: parseGoal(state), timeout: 60_000 });
}

it.each<[Format, string]>([
  ['json', '[]\n'],
  ['yaml', '[]\n'],
  ['name', ''],
  ['table', ''],
])('as %s, writes %j if all VMs were gone before the command', async (output, expected) => {
  await waitFor('deleted', output);
  expect(written).toBe(expected);
});

it('writes no list if the wait for each VM has failed', async () => {
  await expect(waitFor('running', 'json')).rejects.toThrow(AggregateError);
  expect(written).toBe('');
});

function vm(status: object, spec: object = {}, metadata: object = {}): VM {
  return { metadata: { name: 'mac', ...metadata }, spec, status } as VM;
}

const condition = (type: string, status: string, reason = 'Word') => ({
  conditions: [{ type, status, reason, message: 'no image', lastTransitionTime: '' }],
});
const SHUT_DOWN = condition('Ready', 'False', 'GuestShutdown');
const EARLY = '2026-11-23T12:00:00Z';
const LATE = '2026-11-23T13:00:00Z';

it.each([
  ['running', { phase: 'Running' }, {}, 'yes'],
  ['running', { phase: 'Stopping' }, {}, 'not yet'],
  // The host has not yet acted on `vm start`.
  ['running', { phase: 'Stopped', ...condition('Ready', 'False', 'Stopped') }, {}, 'not yet'],
  ['running', { phase: 'Stopped', ...SHUT_DOWN }, { restartRequestedAt: LATE }, 'not yet'],
  // The host starts the guest again by itself.
  ['running', { phase: 'Stopped', ...SHUT_DOWN }, { restartPolicy: 'Always' }, 'not yet'],
  ['running', { phase: 'Running' }, { restartRequestedAt: LATE }, 'not yet'],
  ['running', { phase: 'Running', restartedAt: LATE }, { restartRequestedAt: LATE }, 'yes'],
  ['running', { phase: 'Running', restartedAt: LATE }, { revertRequestedAt: LATE }, 'not yet'],
  ['running', { phase: 'Running', revertedAt: EARLY }, { revertRequestedAt: LATE }, 'not yet'],
  ['running', { phase: 'Running', revertedAt: LATE }, { revertRequestedAt: LATE }, 'yes'],
  ['ready', { phase: 'Running' }, {}, 'not yet'],
  ['ready', { phase: 'Running', ...condition('Ready', 'True') }, {}, 'yes'],
  ['ready', { phase: 'Running', ...condition('Ready', 'True') }, { revertRequestedAt: LATE }, 'not yet'],
  ['condition=NetworkReady=false', condition('NetworkReady', 'False'), {}, 'yes'],
  ['condition=NetworkReady', condition('NetworkReady', 'False'), {}, 'not yet'],
  // As in kubectl, the case of letters does not matter.
  ['condition=networkready=FALSE', condition('NetworkReady', 'False'), {}, 'yes'],
  ['stopped', { phase: 'Stopping' }, { powerState: 'Stopped' }, 'not yet'],
  ['stopped', { phase: 'Stopped' }, { powerState: 'Stopped' }, 'yes'],
  // The guest has shut down by itself.
  ['stopped', { phase: 'Stopped', ...SHUT_DOWN }, {}, 'yes'],
  // The host has not yet acted on `vm start`.
  ['stopped', { phase: 'Stopped', ...condition('Ready', 'False', 'Stopped') }, {}, 'not yet'],
  ['stopped', { phase: 'Stopped', ...SHUT_DOWN }, { restartRequestedAt: LATE }, 'not yet'],
  ['suspended', { phase: 'Running' }, { powerState: 'Suspended' }, 'not yet'],
  ['suspended', { phase: 'Suspended' }, { powerState: 'Suspended' }, 'yes'],
  ['deleted', { phase: 'Running' }, {}, 'not yet'],
] as const)('the goal %s with status %j and spec %j: %s', (goal, status, spec, result) => {
  expect(reached(vm(status, spec), parseGoal(goal))).toBe(result);
});

it.each([
  [{ failure: { reason: 'StartFailed', message: 'no KVM', time: LATE } }, {}, {}, 'cannot run: no KVM'],
  [condition('Stalled', 'True'), {}, {}, 'cannot run: no image'],
  [
    { phase: 'Stopped' },
    { powerState: 'Stopped' },
    {},
    'has the powerState Stopped. Start the VM with `berth vm start mac`',
  ],
  [
    { phase: 'Stopped', restartedAt: LATE, ...SHUT_DOWN },
    { restartRequestedAt: LATE },
    {},
    'has powered itself off. Start the VM with `berth vm start mac`',
  ],
  [{ phase: 'Running' }, {}, { deletionTimestamp: LATE }, 'is being deleted'],
])('ends for a VM that cannot run: %j %j %j', (status, spec, metadata, failure) => {
  expect(reached(vm(status, spec, metadata), parseGoal('ready'))).toEqual({ failure: `VM mac ${failure}` });
  expect(reached(vm(status, spec, metadata), parseGoal('deleted'))).toBe('not yet');
});

it.each([
  ['stopped', 'Suspended', 'Stop the VM with `berth vm stop mac`'],
  ['suspended', 'Running', 'Suspend the VM with `berth vm suspend mac`'],
  ['suspended', 'Stopped', 'Suspend the VM with `berth vm suspend mac`'],
])('ends for a VM that is not to be %s but %s', (goal, powerState, advice) => {
  expect(reached(vm({ phase: 'Running' }, { powerState }), parseGoal(goal))).toEqual({
    failure: `VM mac has the powerState ${powerState}. ${advice}`,
  });
});

it('ends for a VM that cannot be suspended, because it is off', () => {
  expect(reached(vm({ phase: 'Stopped' }, { powerState: 'Suspended' }), parseGoal('suspended'))).toEqual({
    failure:
      'VM mac is Stopped, so it has no memory to save. Start the VM with `berth vm start mac`, and suspend it again',
  });
});

it('refuses other goals', () => {
  expect(formatGoal(parseGoal('condition=Ready'))).toBe('at condition Ready=True');
  for (const text of ['paused', 'condition=', 'condition=Ready=maybe', '']) {
    expect(() => parseGoal(text)).toThrow('running, ready, stopped, suspended, deleted');
  }
});

it('a condition of an earlier generation does not count', () => {
  const [ready] = condition('Ready', 'True', 'Stopped').conditions;
  const status = { phase: 'Stopped', conditions: [{ ...ready, observedGeneration: 1 }] };
  const at = (generation: number) => reached(vm(status, {}, { generation }), parseGoal('condition=Ready'));
  expect([at(1), at(2)]).toEqual(['yes', 'not yet']);
});

it('a guest that powered itself off is stopped, although its VM is Stalled', () => {
  const [stalled] = condition('Stalled', 'True', 'GuestShutdown').conditions;
  const off = { phase: 'Stopped', conditions: [...SHUT_DOWN.conditions, stalled] };
  expect(reached(vm(off, {}), parseGoal('stopped'))).toBe('yes');
});
