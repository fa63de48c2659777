import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import * as fc from 'fast-check';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { machineReportSchema } from '../../../api/v1alpha1/machine.ts';
import { afterSync, ScriptedPeer } from '../../../test/wires/scriptedpeer.ts';
import type { GuestAnswer, GuestQuestion } from '../driver.ts';
import { MachineGuest } from './guest.ts';
import { GuestAgent } from './guestagent.ts';
import type { Hypervisor } from './hypervisor.ts';
import type { QemuMachine } from './machine.ts';

let folder: string;
let peer: ScriptedPeer | undefined;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-guest-'));
});

afterEach(async () => {
  await peer?.close();
  peer = undefined;
  await rm(folder, { recursive: true, force: true });
});

/** Answers each command of the guest agent with its entry in `answers`. A command without an entry is unknown to the guest agent. */
async function listen(answers: Readonly<Record<string, unknown>>): Promise<ScriptedPeer> {
  peer = await ScriptedPeer.listen(
    join(folder, 'ga.sock'),
    afterSync((socket, { execute }) => {
      const answer = answers[execute];
      const unknown = { error: { desc: `The command ${execute} has not been found` } };
      socket.write(`${JSON.stringify(answer === undefined ? unknown : { return: answer })}\n`);
    }),
  );
  return peer;
}

/** Asks the guest of a machine. Its hypervisor reports the run state `status`, and whether the guest has opened the guest agent's port. */
async function ask(
  { facts = true, signal = new AbortController().signal }: Partial<GuestQuestion> = {},
  { status = 'running', isOpen = true } = {},
): Promise<GuestAnswer> {
  const qmp = {
    status: async () => status,
    ask: async () => [{ label: 'agent', 'frontend-open': isOpen }],
  };
  const hypervisor = { qmp: async () => qmp, guestAgent: new GuestAgent(folder) };
  const machine = { watched: hypervisor as unknown as Hypervisor } as unknown as QemuMachine;
  return await new MachineGuest(machine, pino({ level: 'silent' })).ask({ facts, signal });
}

function interfacesWith(...addresses: string[]): unknown[] {
  const entry = { name: 'eth0', 'ip-addresses': addresses.map((ip) => ({ 'ip-address': ip, prefix: 24 })) };
  return [{ name: 'sit0', 'hardware-address': '0' }, entry];
}

describe('the guest agent of a machine', () => {
  it('reports addresses, operating system and host name', async () => {
    const here = ['127.0.0.1', '::1', 'fe80::1', 'fe80::1%eth0', '169.254.1.1', '224.0.0.1', '0.0.0.0', 'x'];
    await listen({
      'guest-ping': {},
      'guest-network-get-interfaces': interfacesWith('10.0.2.15', ...here, 'FEC0:0:0::15', '10.0.2.15'),
      'guest-get-osinfo': { id: 'debian', 'pretty-name': 'Debian GNU/Linux 12 (bookworm)' },
      'guest-get-host-name': { 'host-name': 'ci-runner' },
    });
    expect(await ask()).toEqual({
      kind: 'answers',
      facts: {
        addresses: ['10.0.2.15', 'fec0::15'],
        os: 'Debian GNU/Linux 12 (bookworm)',
        hostName: 'ci-runner',
      },
    });
  });

  it('reports the other addresses if it gives null or something strange for some', async () => {
    const strange = [null, 7, { 'ip-addresses': null }, { 'ip-addresses': [null, {}, { 'ip-address': 7 }] }];
    const interfaces = [...strange, ...interfacesWith('10.0.2.15')];
    await listen({ 'guest-ping': {}, 'guest-network-get-interfaces': interfaces });
    expect(await ask()).toEqual({ kind: 'answers', facts: { addresses: ['10.0.2.15'] } });
  });

  it('answers also without the commands for facts', async () => {
    await listen({ 'guest-ping': {} });
    expect(await ask()).toEqual({ kind: 'answers', facts: { addresses: [] } });
  });

  it('is only asked for facts if they are wanted', async () => {
    const { commands } = await listen({ 'guest-ping': {} });
    expect(await ask({ facts: false })).toEqual({ kind: 'answers', facts: undefined });
    expect(commands).toEqual(['guest-sync-delimited', 'guest-ping']);
  });

  it('is silent, and gets no connection, if no program in the guest has opened its port', async () => {
    const { commands } = await listen({ 'guest-ping': {} });
    expect(await ask({}, { isOpen: false })).toEqual({ kind: 'silent' });
    expect(commands).toEqual([]);
  });

  it('is not asked while the guest is paused', async () => {
    const { commands } = await listen({ 'guest-ping': {} });
    expect(await ask({}, { status: 'paused' })).toEqual({ kind: 'busy' });
    expect(commands).toEqual([]);
  });

  it.each([
    [Array.from({ length: 2_000 }, (_, at) => `10.0.${at >> 8}.${at & 255}`), 'x'.repeat(254), 'a\u202eb'],
    [[{}], '-host', 'x'.repeat(129)],
    ['10.0.0.1', 'a b', 'line\nline'],
  ])('cannot put other text into a status', async (addresses, hostName, os) => {
    await listen({
      'guest-ping': {},
      'guest-network-get-interfaces': interfacesWith(...(addresses as string[])),
      'guest-get-osinfo': { 'pretty-name': os },
      'guest-get-host-name': { 'host-name': hostName },
    });
    const answer = await ask();
    const facts = answer.kind === 'answers' ? answer.facts : undefined;
    expect(facts?.addresses.length).toBeLessThanOrEqual(16);
    expect(facts).toEqual({ addresses: facts?.addresses });
  });

  it('cannot keep the agent busy with a long list, because its end is not read', async () => {
    const [, one] = interfacesWith('10.0.2.15');
    const interfaces = (count: number) => [
      ...Array.from({ length: 256 }, () => one),
      ...Array.from({ length: count }, () => 1),
    ];
    await listen({ 'guest-ping': {}, 'guest-network-get-interfaces': interfaces(1_000) });
    expect(await ask()).toEqual({ kind: 'answers', facts: { addresses: ['10.0.2.15'] } });
    await peer?.close();
    await listen({ 'guest-ping': {}, 'guest-network-get-interfaces': interfaces(100_000) });
    expect(await ask()).toEqual({ kind: 'answers', facts: { addresses: [] } });
  });

  it('can answer anything without an effect', async () => {
    const run = async (values: unknown[]): Promise<void> => {
      const [interfaces, os, host] = values;
      await listen({
        'guest-ping': null,
        'guest-network-get-interfaces': interfaces,
        'guest-get-osinfo': os,
        'guest-get-host-name': host,
      });
      const answer = await ask();
      expect(answer.kind).toBe('answers');
      const guest = answer.kind === 'answers' ? answer.facts : undefined;
      expect(machineReportSchema.parse({ guest })).toEqual({ guest });
      await peer?.close();
    };
    const text = fc.oneof(fc.string(), fc.ipV4(), fc.ipV6());
    const near = fc.record({ 'pretty-name': text, 'host-name': text });
    const interfaces = fc.array(
      fc.record({ 'ip-addresses': fc.array(fc.record({ 'ip-address': text })) }, { requiredKeys: [] }),
    );
    const answers = fc.array(fc.oneof(near, interfaces, fc.jsonValue()), { minLength: 3, maxLength: 3 });
    await fc.assert(fc.asyncProperty(answers, run), { numRuns: 200 });
  });
});
