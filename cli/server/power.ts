/** Requests a power action of servers, with the user's own rights, and waits for its result. */
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { LastAction, PowerAction, Server } from '../../api/v1alpha1/server.ts';
import { timestamp } from '../../base/time.ts';
import { type Cluster, withCluster } from '../cluster.ts';
import { timeText } from '../duration.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { report } from '../objects/kind.ts';
import { forEachName, getNamed } from '../objects/named.ts';
import { versionsFrom } from '../objects/versions.ts';
import { progressLine } from '../progress.ts';
import type { Terminal } from '../terminal.ts';
import { SERVER_KIND } from './kind.ts';

interface Request {
  readonly names: readonly string[];
  readonly action: PowerAction;
  /** Whether to wait for the result. */
  readonly wait: boolean;
  /** Time limit of the wait in milliseconds. */
  readonly timeout: number;
}

/**
 * Requests the action of all named servers at the same time.
 *
 * @throws CommandError when the action is refused or fails, or has no result within the time limit; ApiError.
 */
export async function power(terminal: Terminal, globals: Globals, request: Request): Promise<void> {
  const { names, action, wait, timeout } = request;
  const late = AbortSignal.timeout(timeout);
  const signal = AbortSignal.any([terminal.signal, late]);
  const progress = progressLine(terminal);
  await withCluster(terminal, globals, async (cluster) => {
    const { done: objects, rethrow } = await forEachName(names, async (name) => {
      const server = await requested(cluster, name, { action, signal: terminal.signal });
      if (!wait) {
        return server;
      }
      try {
        return await untilEnded(cluster, server, { signal, show: progress.show });
      } catch (error) {
        throw error === late.reason ? outOfTime(name, action, timeout) : error;
      }
    });
    progress.end();
    const verb = wait ? 'Carried out' : 'Requested';
    const sentence = (name: string) => `${verb} ${action} of server ${name}`;
    await report(terminal, globals, { kind: SERVER_KIND, objects, sentence });
    rethrow();
  });
}

/** Writes the request into the Server. The patch fails if somebody else changed the Server at the same time. */
async function requested(
  cluster: Cluster,
  name: string,
  { action, signal }: { action: PowerAction; signal: AbortSignal },
): Promise<Server> {
  const { metadata, spec, status } = await getNamed(cluster, SERVER_KIND, name, signal);
  const { uid, resourceVersion } = metadata;
  const requestedAt = timeAfter([spec.powerAction?.requestedAt, status?.lastRequestedAt]);
  const patch = { metadata: { uid, resourceVersion }, spec: { powerAction: { action, requestedAt } } };
  return await cluster.client.mergePatch(SERVERS, { name }, patch, { signal });
}

/** Returns the present time, or a second after the latest of these times. The operator ignores a request that is not later than all others. */
function timeAfter(times: readonly (string | undefined)[]): string {
  const known = times.map((time) => Date.parse(time ?? '') + 1_000).filter((time) => !Number.isNaN(time));
  return timestamp(Math.max(Date.now(), ...known));
}

/** Returns the Server when the requested action has ended well. @throws CommandError; ApiError; the signal's reason when the signal aborts. */
async function untilEnded(
  cluster: Cluster,
  first: Server,
  { signal, show }: { signal: AbortSignal; show: (line: string) => void },
): Promise<Server> {
  const { name } = first.metadata;
  const id = first.spec.powerAction?.requestedAt;
  for await (const server of versionsFrom(cluster, SERVERS, first, signal)) {
    const own = ownAction(server, id);
    if (own?.completedAt !== undefined) {
      return ended(server, own);
    }
    if (own === undefined && server.spec.powerAction?.requestedAt !== id) {
      throw new CommandError(`Server ${name}: another request replaced this one before it began`);
    }
    show(`${name}: ${waitText(own)}`);
  }
  throw new CommandError(`Server ${name} was deleted`, EXIT.notFound);
}

/** Returns the last action of the Server if it has this id. */
function ownAction({ status }: Server, id: string | undefined): LastAction | undefined {
  return status?.lastAction?.id === id ? status?.lastAction : undefined;
}

function waitText(own: LastAction | undefined): string {
  return own === undefined ? 'waiting for the operator' : own.message || 'waiting for the controller';
}

function ended(server: Server, { action, result, message }: LastAction): Server {
  if (result === 'Succeeded') {
    return server;
  }
  const how = result === 'Refused' ? 'was refused' : 'failed';
  throw new CommandError(`${action} of server ${server.metadata.name} ${how}: ${message}`);
}

function outOfTime(name: string, action: PowerAction, timeout: number): CommandError {
  return new CommandError(
    `${action} of server ${name} has not ended after ${timeText(timeout)}. The request stays: look at the server with server get`,
    EXIT.noAnswer,
  );
}
