/** Deploys an Android emulator beside a running VM and waits until Android has booted. */
import type { Logger } from 'pino';
import type { EmulatorRequest } from '../../api/http/emulator.ts';
import { EMULATOR_DEFAULTS, type Emulator } from '../../api/v1alpha1/emulator.ts';
import type { Unsaved } from '../../kube/objects.ts';
import { follow } from '../../kube/follow.ts';
import type { Caller } from '../callers/caller.ts';
import { createAs, getAs } from '../callers/objects.ts';
import { StatusError } from '../http/errors.ts';
import { EMULATORS, VMS } from '../resources.ts';
import { WaitEnd } from '../http/waiting.ts';

/** Wait for an emulator when the request gives none. Android boots within two minutes if the system image is on the host. */
const TIMEOUT_MINUTES = 5;
/** Time limit of the deletion of an emulator whose name no client knows. A stopping process has less than 15 s for it. */
const DELETE_MILLISECONDS = 10_000;

export interface EmulatorDeploy {
  readonly caller: Caller;
  readonly namespace: string;
  readonly body: EmulatorRequest;
  readonly logger: Pick<Logger, 'warn'>;
}

/**
 * Creates the emulator and resolves with it when it runs. If the time of the request is over or the server stops, resolves with the
 * emulator that does not run yet. Its deployment continues, and it ends with its VM at the latest. A failed emulator is deleted, and so is
 * an emulator whose client is gone without its name. `end` aborts the wait with a {@link WaitEnd}.
 *
 * @throws StatusError 409 when the VM does not run, 500 when the emulator fails. @throws ApiError when the API server refuses.
 */
export async function deployEmulator(request: EmulatorDeploy, end: AbortController): Promise<Emulator> {
  const { caller, namespace, body } = request;
  const { status } = await getAs(caller.client, VMS, { namespace, name: body.vm });
  if (status?.phase !== 'Running') {
    throw new StatusError(409, `VM ${body.vm} does not run. An emulator needs a running VM`);
  }
  const milliseconds = (body.timeout ?? TIMEOUT_MINUTES) * 60_000;
  const timer = setTimeout(() => end.abort(new WaitEnd('late')), milliseconds);
  try {
    const created = await createAs(caller.client, EMULATORS, emulatorOf(body, namespace));
    return await untilBooted(request, created, end.signal);
  } finally {
    clearTimeout(timer);
  }
}

async function untilBooted(
  request: EmulatorDeploy,
  created: Emulator,
  signal: AbortSignal,
): Promise<Emulator> {
  const { client, watches } = request.caller;
  let latest = created;
  try {
    const from = created.metadata;
    for await (const emulator of follow<Emulator>({ client, watches, type: EMULATORS, from, signal })) {
      latest = emulator;
      const { phase, failure } = emulator.status ?? {};
      if (phase === 'Running') {
        return emulator;
      }
      if (phase === 'Failed') {
        await deleteUnknown(request, created);
        throw failed(emulator, failure);
      }
    }
  } catch (error) {
    if (!(error instanceof WaitEnd)) {
      throw error;
    }
    if (error.why === 'gone' && request.body.name === undefined) {
      await deleteUnknown(request, created);
    }
    return latest;
  }
  throw new StatusError(409, `Emulator ${created.metadata.name} was deleted before it ran`);
}

/** Deletes an emulator whose name no client knows. If the deletion fails, the emulator stays until its VM is deleted. */
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
      'an emulator was not deleted, and stays until its VM is deleted',
    );
  }
}

function failed(
  { metadata }: Emulator,
  failure: { reason: string; message: string } | undefined,
): StatusError {
  const { reason = 'Failed', message = `Emulator ${metadata.name} failed` } = failure ?? {};
  return new StatusError(500, message, { causes: [{ reason, message }] });
}

/** Returns the Emulator for the body. Its own time limit is not shorter than the wait. */
function emulatorOf(body: EmulatorRequest, namespace: string): Unsaved<Emulator> {
  const {
    vm,
    name,
    platform,
    device,
    deviceProfile,
    imageType,
    cpu,
    memory,
    timeout = TIMEOUT_MINUTES,
  } = body;
  const seconds = timeout * 60;
  return {
    metadata: { namespace, ...(name === undefined ? { generateName: 'emulator-' } : { name }) },
    spec: {
      vmName: vm,
      platform,
      device: device ?? deviceProfile,
      imageType,
      cpu,
      memory: memory === undefined ? undefined : `${memory}Mi`,
      deployTimeoutSeconds: seconds > EMULATOR_DEFAULTS.deployTimeoutSeconds ? seconds : undefined,
    },
  };
}
