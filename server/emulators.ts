/** The Android emulators of a namespace. A deployment waits until Android has booted. */
import type { Logger } from 'pino';
import { inNamespace, MEMBERS, READERS } from './own/rights.ts';
import {
  emulatorItemSchema,
  emulatorListSchema,
  type EmulatorRequest,
  emulatorRequestSchema,
} from '../api/http/emulator.ts';
import { emulatorItem } from '../api/http/emulatoritem.ts';
import { statusSchema, success } from '../api/http/status.ts';
import { listQuerySchema } from '../api/http/request.ts';
import { listAs } from './callers/list.ts';
import { createAs, deleteAs, getAs } from './callers/objects.ts';
import type { App } from './http/app.ts';
import { namespaceParams, objectParams } from './http/namespaces.ts';
import { EMULATORS, VMS } from '../api/v1alpha1/resources.ts';
import type { Services } from './services.ts';
import { emulatorOf, requireRunning, timeoutMinutes, untilBooted } from '../actions/emulator.ts';
import { ActionError } from '../actions/error.ts';
import type { Emulator } from '../api/v1alpha1/emulator.ts';
import type { Caller } from './callers/caller.ts';
import { WaitEnd } from './http/waiting.ts';
import { EMULATOR_DIALECT } from './dialect/fields.ts';
import { SAMPLE } from './http/samples.ts';

const COLLECTION = '/api/v1/namespaces/:namespace/emulators';
const tags = ['Emulators'];
const emulatorParams = objectParams('emulator', SAMPLE.new);

export function addEmulatorRoutes(app: App, { waiting }: Services): void {
  app.get(
    COLLECTION,
    {
      schema: {
        summary: 'List the emulators of a namespace',
        description: 'The list can be read in pages, as the list of VMs.',
        roles: READERS,
        tags,
        params: namespaceParams,
        querystring: listQuerySchema,
        response: { 200: emulatorListSchema },
      },
    },
    async ({ caller, params, query }) =>
      await listAs(caller(), EMULATORS, { ...params, ...query }, emulatorItem),
  );
  app.get(
    `${COLLECTION}/:name`,
    {
      schema: {
        summary: 'Get an emulator',
        description: 'The item has the address and the port of ADB while the emulator runs.',
        roles: READERS,
        tags,
        params: emulatorParams,
        response: { 200: emulatorItemSchema },
      },
    },
    async ({ caller, params }) => emulatorItem(await getAs(caller(), EMULATORS, params)),
  );
  app.post(
    COLLECTION,
    {
      config: {
        right: inNamespace({ verb: 'create', resource: 'emulators' }),
        dialect: EMULATOR_DIALECT,
      },
      schema: {
        summary: 'Deploy an emulator on the host of a running VM, and wait until the emulator runs',
        roles: MEMBERS,
        sample: { vm: SAMPLE.vm, name: SAMPLE.new },
        description:
          'If the emulator does not run within the timeout, the answer has the status Pending, and the deployment continues.',
        tags,
        params: namespaceParams,
        body: emulatorRequestSchema,
        response: { 200: emulatorItemSchema },
      },
    },
    async ({ fullCaller, params: { namespace }, body, log }, reply) => {
      const caller = fullCaller();
      const request = { caller, namespace, body, logger: log };
      const user = await caller.client.username();
      return emulatorItem(
        await waiting.run(reply.raw, { user, namespace }, async (end) => await deployEmulator(request, end)),
      );
    },
  );
  app.delete(
    `${COLLECTION}/:name`,
    {
      schema: {
        summary: 'Delete an emulator',
        description: 'The VM of the emulator stays.',
        roles: MEMBERS,
        tags,
        params: emulatorParams,
        response: { 200: statusSchema },
      },
    },
    async ({ caller, params }) => {
      await deleteAs(caller(), EMULATORS, params);
      return success();
    },
  );
}

/**
 * Time limit in milliseconds for the deletion of an emulator that failed, or whose name no client knows. It is less than the 15 s that a
 * stopping process has for all its work.
 */
const DELETE_MILLISECONDS = 10_000;

interface EmulatorDeploy {
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
