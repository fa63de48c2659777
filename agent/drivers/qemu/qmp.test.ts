import { mkdtemp, rm } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ScriptedPeer } from '../../../test/wires/scriptedpeer.ts';
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
