import { mkdtemp, rm } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ScriptedPeer } from '../../../test/wires/scriptedpeer.ts';
import { hasGuestAgent } from './guestagent.ts';
import { QmpConnection } from './qmp.ts';
import { FILES } from './state.ts';

test('a hypervisor that refuses the negotiation leaves no socket open', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-qmp-'));
  let closed = false;
  const peer = await ScriptedPeer.listen(join(folder, FILES.qmp), (socket: Socket, { id }) => {
    socket.on('close', () => {
      closed = true;
    });
    socket.write(`${JSON.stringify({ id, error: { class: 'GenericError', desc: 'refused' } })}\n`);
  });
  try {
    const connecting = QmpConnection.connect(folder, FILES.qmp, { timeoutMilliseconds: 30_000 });
    await expect(connecting).rejects.toThrow('refused');
    await expect.poll(() => closed).toBe(true);
  } finally {
    await peer.close();
    await rm(folder, { recursive: true });
  }
});

/** A hypervisor that a guest took over can answer with anything, and an error for each item of a long list would keep the agent busy. */
describe('the list of a hostile hypervisor', () => {
  const AGENT = { label: 'agent', 'frontend-open': true };
  const INVALID = Array.from({ length: 3_000 }, () => 0);
  let folder: string;
  let peer: ScriptedPeer;
  let qmp: QmpConnection;
  let answer: unknown;

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-qmp-'));
    peer = await ScriptedPeer.listen(join(folder, FILES.qmp), (socket: Socket, { id, execute }) => {
      const value = execute === 'query-chardev' ? answer : {};
      socket.write(`${JSON.stringify({ id, return: value })}\n`);
    });
    qmp = await QmpConnection.connect(folder, FILES.qmp, { timeoutMilliseconds: 30_000 });
  });

  afterEach(async () => {
    qmp.close();
    await peer.close();
    await rm(folder, { recursive: true });
  });

  test('is checked only at its beginning', async () => {
    answer = [...Array.from({ length: 256 }, () => AGENT), ...INVALID];
    expect(await hasGuestAgent(qmp)).toBe(true);
  });

  test('gives a short error', async () => {
    answer = INVALID;
    const error = await hasGuestAgent(qmp).catch((cause: unknown) => String(cause));
    expect(error).toContain('QEMU gave an invalid answer to query-chardev');
    expect(String(error).length).toBeLessThan(1_100);
  });
});
