/**
 * Sends bodies that are expensive to parse to the HTTP API over several connections, until it is killed. Runs in its own process, so that the
 * test that measures other requests is not busy itself. Prints the status of each answer in a line.
 */
import { Agent, request } from 'undici';

/** Flat JSON of 1 MiB. To parse and check it took 65 to 90 ms of the processor. */
const BODY = Buffer.from(`{"vmMetadata":[${'[],'.repeat(340_000)}[]]}`);

export interface BodyAttack {
  readonly url: string;
  readonly authority: string;
  readonly token: string;
  readonly connections: number;
}

async function sendForever({ url, authority, token }: BodyAttack): Promise<never> {
  const dispatcher = new Agent({ connections: 1, connect: { ca: authority } });
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
  for (;;) {
    const { statusCode, body } = await request(url, { method: 'POST', dispatcher, headers, body: BODY });
    await body.dump();
    process.stdout.write(`${statusCode}\n`);
  }
}

const attack = JSON.parse(process.argv[2] ?? '') as BodyAttack;
await Promise.all(Array.from({ length: attack.connections }, () => sendForever(attack)));
