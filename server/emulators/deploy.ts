/** Deploys an Android emulator beside a running VM and waits until Android has booted. */
import type { Logger } from 'pino';
import { emulatorOf, requireRunning, timeoutMinutes, untilBooted } from '../../actions/emulator.ts';
import { ActionError } from '../../actions/error.ts';
import type { EmulatorRequest } from '../../api/http/emulator.ts';
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import type { Caller } from '../callers/caller.ts';
import { createAs, getAs } from '../callers/objects.ts';
import { EMULATORS, VMS } from '../../api/v1alpha1/resources.ts';
import { WaitEnd } from '../http/waiting.ts';

/**
 * Time limit in milliseconds for the deletion of an emulator that failed, or whose name no client knows. It is less than the 15 s that a
 * stopping process has for all its work.
 */
const DELETE_MILLISECONDS = 10_000;

export interface EmulatorDeploy {
  readonly caller: Caller;
  readonly namespace: string;
  readonly body: EmulatorRequest;
  readonly logger: Pick<Logger, 'warn'>;
}

/**
 * Creates the emulator and resolves with the emulator when it runs. If the time limit of the request passes or the server stops before
 * that, the promise resolves with the emulator's current state. The deployment then continues. An emulator that fails is deleted. An
 * emulator with a generated name is also deleted if the client closes the connection, or if the wait ends with an error. In both cases, the
 * client does not learn the name. The wait ends when the signal of `end` aborts with a {@link WaitEnd}.
 *
 * @throws ActionError when the VM does not run, or the emulator fails. @throws ApiError when the API server refuses.
 */
export async function deployEmulator(request: EmulatorDeploy, end: AbortController): Promise<Emulator> {
  const { caller, namespace, body } = request;
  requireRunning(await getAs(caller.client, VMS, { namespace, name: body.vm }));
  const milliseconds = timeoutMinutes(body) * 60_000;
  const timer = setTimeout(() => end.abort(new WaitEnd('late')), milliseconds);
  try {
    const created = await createAs(caller.client, EMULATORS, emulatorOf(body, namespace));
    return await bootedOrLatest(request, created, end.signal);
  } finally {
    clearTimeout(timer);
  }
}

async function bootedOrLatest(
  request: EmulatorDeploy,
  created: Emulator,
  signal: AbortSignal,
): Promise<Emulator> {
  const latest = { emulator: created };
  try {
    return await untilBooted(latest, { ...request.caller, signal });
  } catch (error) {
    if (isUseless(error, request.body)) {
      await deleteUnknown(request, created);
    }
    if (error instanceof WaitEnd) {
      return latest.emulator;
    }
    throw error;
  }
}

/** Reports whether nobody can use the emulator: it has failed, or the client does not learn its generated name. */
function isUseless(error: unknown, { name }: EmulatorRequest): boolean {
  if (error instanceof ActionError) {
    return error.kind === 'failed';
  }
  return name === undefined && (!(error instanceof WaitEnd) || error.why === 'gone');
}

/** Deletes an emulator that failed, or whose name no client knows. If the deletion fails, the emulator stays until its VM is deleted. */
async function deleteUnknown(
  { caller, namespace, logger }: EmulatorDeploy,
  { metadata: { name, uid } }: Emulator,
): Promise<void> {
  try {
    const options = { uid, deadlineMilliseconds: DELETE_MILLISECONDS };
    await caller.client.delete(EMULATORS, { namespace, name }, options);
  } catch (error) {
    logger.warn(
      { err: error, emulator: `${namespace}/${name}` },
      'the emulator could not be deleted, so it stays until its VM is deleted',
    );
  }
}
