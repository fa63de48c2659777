import { buffer } from 'node:stream/consumers';
import { PassThrough } from 'node:stream';
import { beforeEach, expect, it } from 'vitest';
import { receiveFile } from './receiver.ts';

let connection: PassThrough;

beforeEach(() => {
  connection = new PassThrough();
});

/** Sends the pieces one after another, and then ends the connection. */
function send(...pieces: string[]): void {
  for (const piece of pieces) {
    connection.write(piece);
  }
  connection.end();
}

it.each([
  ['{"bytes":7}\n', 'content'],
  ['{"bytes":7}\ncon', 'tent'],
  ['{"by', 'tes":7}\nc', 'ontent'],
  ['{"bytes":7}\ncontent', ' and more than was announced'],
])('a file arrives whole, however its bytes are cut: %j', async (...pieces) => {
  send(...pieces);
  const { bytes, file } = await receiveFile(connection);
  expect([bytes, String(await buffer(file))]).toEqual([7, 'content']);
  expect(connection.destroyed).toBe(true);
});

it.each(['end', 'error'])('a connection that breaks off by its %s is never a shorter file', async (how) => {
  connection.write('{"bytes":7}\ncont');
  const { file } = await receiveFile(connection);
  const whole = buffer(file);
  whole.catch(() => undefined);
  void (how === 'end' ? connection.end() : connection.destroy(new Error('reset')));
  await expect(whole).rejects.toMatchObject({ body: { code: 503 } });
});

it('a host that refuses has the answer', async () => {
  send('{"reason":"DiskFull","message":"no room"}');
  const causes = [{ reason: 'DiskFull', message: 'no room' }];
  await expect(receiveFile(connection)).rejects.toMatchObject({
    body: { code: 503, message: 'no room', details: { causes } },
  });
});

it.each([
  ['nothing', ''],
  ['no JSON', 'x\n'],
  ['a negative number', '{"bytes":-1}\n'],
  ['a line without an end', 'x'.repeat(100_000)],
])('a host that sends %s is refused', async (_what, text) => {
  send(text);
  await expect(receiveFile(connection)).rejects.toMatchObject({ body: { code: 503 } });
});
