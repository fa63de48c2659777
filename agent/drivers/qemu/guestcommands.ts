/** Single commands to a guest agent: shut down and set the clock. */
import * as z from 'zod';
import { AGENT_CHARDEV } from './arguments.ts';
import type { GuestAgent } from './guestagent/guestagent.ts';
import { GuestConnection } from './guestagent/connection.ts';
import type { QmpConnection } from './qmp.ts';

/**
 * Time that a guest agent has to refuse a shutdown. The guest agent refuses if the guest's own shutdown command fails, and otherwise gives
 * no answer. The shutdown command ends within a second, even in an emulated guest.
 */
const REFUSAL_MILLISECONDS = 5_000;
/** Time limit to set the clock. The guest also writes its hardware clock, which takes up to two seconds. */
const CLOCK_TIMEOUT_MILLISECONDS = 15_000;
const NANOSECONDS_PER_MILLISECOND = 1_000_000;

const chardevsSchema = z.array(z.object({ label: z.string(), 'frontend-open': z.boolean() }));

/**
 * Returns whether a program in the guest has opened the guest agent's port. One QMP command is enough for this answer. With a connection,
 * the host's agent would notice only after a time limit that no guest agent answers.
 */
export async function hasGuestAgent(qmp: QmpConnection): Promise<boolean> {
  const chardevs = await qmp.ask('query-chardev', chardevsSchema);
  return chardevs.some((one) => one.label === AGENT_CHARDEV && one['frontend-open']);
}

/**
 * Makes the guest power off. The guest agent answers this request only to refuse it, so the promise resolves when no refusal has come in
 * time. @throws Error when the guest agent refuses, or when the guest has no guest agent that answers.
 */
export async function shutDown(agent: GuestAgent, signal: AbortSignal): Promise<void> {
  await agent.urgently(async () => {
    const connection = await GuestConnection.open(agent.folder, { signal });
    if (connection === undefined) {
      throw new Error('The guest agent does not answer');
    }
    try {
      await connection.tryExecute('guest-shutdown', {
        timeoutMilliseconds: REFUSAL_MILLISECONDS,
        arguments: { mode: 'powerdown' },
        signal,
      });
    } finally {
      connection.close();
    }
  });
}

/** Sets the guest's clock to the host's time. @throws Error when the guest agent refuses or does not answer. */
export async function setTime(connection: GuestConnection | undefined, signal: AbortSignal): Promise<void> {
  if (connection === undefined) {
    throw new Error('The guest agent does not answer');
  }
  const time = Date.now() * NANOSECONDS_PER_MILLISECOND;
  const timeoutMilliseconds = CLOCK_TIMEOUT_MILLISECONDS;
  await connection.execute('guest-set-time', { timeoutMilliseconds, arguments: { time }, signal });
}
