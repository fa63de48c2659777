/** Routes of the Android emulators of a namespace. */
import { inNamespace } from '../own/rights.ts';
import { emulatorItemSchema, emulatorListSchema, emulatorRequestSchema } from '../../api/http/emulator.ts';
import { emulatorItem } from '../../api/http/emulatoritem.ts';
import { statusSchema, success } from '../../api/http/status.ts';
import { listQuerySchema } from '../../api/http/request.ts';
import { listAs } from '../callers/list.ts';
import { deleteAs, getAs } from '../callers/objects.ts';
import type { App } from '../http/app.ts';
import { namespaceParams, objectParams } from '../http/params.ts';
import { EMULATORS } from '../../api/v1alpha1/resources.ts';
import type { Services } from '../services.ts';
import { deployEmulator } from './deploy.ts';

const COLLECTION = '/api/v1/namespaces/:namespace/emulators';
const tags = ['Emulators'];

export function addEmulatorRoutes(app: App, { waiting }: Services): void {
  app.get(
    COLLECTION,
    {
      schema: {
        summary: 'List the emulators of a namespace',
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
        tags,
        params: objectParams,
        response: { 200: emulatorItemSchema },
      },
    },
    async ({ caller, params }) => emulatorItem(await getAs(caller(), EMULATORS, params)),
  );
  app.post(
    COLLECTION,
    {
      config: { right: inNamespace({ verb: 'create', resource: 'emulators' }) },
      schema: {
        summary: 'Deploy an emulator on the host of a running VM, and wait until the emulator runs',
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
        tags,
        params: objectParams,
        response: { 200: statusSchema },
      },
    },
    async ({ caller, params }) => {
      await deleteAs(caller(), EMULATORS, params);
      return success();
    },
  );
}
