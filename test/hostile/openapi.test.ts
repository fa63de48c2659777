/** Generated requests to every operation of the HTTP API, as an administrator. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { waitFor } from '../../hack/wait.ts';
import { VMs } from '../fixtures/vms.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import {
  FuzzedServer,
  NAMESPACE,
  SET_UP_MILLISECONDS,
  SYSTEM,
  TEST_MILLISECONDS,
} from './support/fuzzedserver.ts';

/** Time limit for an operator to start and for a simulated VM to run, on a busy machine. */
const STARTED = { deadlineMilliseconds: 120_000 };

/** Number of generated requests of each operation at full scale. */
const EXAMPLES = 200;

let fuzzed: FuzzedServer;

beforeAll(async () => {
  fuzzed = await FuzzedServer.start('openapi');
}, SET_UP_MILLISECONDS);

afterAll(async () => await fuzzed?.[Symbol.asyncDispose]());

it('an administrator gets no error of the server', { timeout: TEST_MILLISECONDS }, async (context) => {
  const { cluster, server } = fuzzed;
  const token = await fuzzed.tokenOf('administrator');
  const subject = `--serviceaccount=${SYSTEM}:administrator`;
  await cluster.kubectl(['create', 'clusterrolebinding', 'fuzz', '--clusterrole=cluster-admin', subject]);
  await cluster.startOperator();
  await new VMs(cluster).waitForPhase('one', 'Running', undefined, STARTED);
  const api = new HTTPClient(server);
  const path = `/api/v1/namespaces/${NAMESPACE}/vms`;
  await waitFor('the rights', async () => (await api.call(path, { token })).status === 200);
  const codes = await fuzzed.send(context, 'administrator', [
    { token, examples: EXAMPLES, onlyValid: false },
  ]);
  for (const code of ['200', '202', '207', '404', '409', '422']) {
    expect([code, codes.get(code)]).toEqual([code, expect.any(Number)]);
  }
  await api.close();
});
