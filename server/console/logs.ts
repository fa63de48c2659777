/** Logs of VMs in the console: the text of the serial console from now and earlier, as `kubectl logs --follow` shows it. */
import { Readable } from 'node:stream';
import * as z from 'zod';
import { MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { rest } from '../../base/time.ts';
import { query } from '../../kube/client.ts';
import { PODS } from '../../kube/core.ts';
import { pathOf } from '../../kube/objects.ts';
import { accountNamespaceOf } from '../../kube/serving/connections.ts';
import { getAs } from '../callers/objects.ts';
import { limitReading } from '../http/answers.ts';
import type { App } from '../http/app.ts';
import { objectParams } from '../http/namespaces.ts';
import { SAMPLE } from '../http/samples.ts';
import type { WaitingRequests } from '../http/waiting.ts';

const LOG_PATH = '/console/logs/namespaces/:namespace/vms/:name';

/** Largest number of earlier lines. The page keeps somewhat more. */
const EARLIER_LINES = 1_000;
/**
 * Time in milliseconds after which a log ends, and the page asks for the rest. The API server checks a token only when a log begins, so a token
 * that was withdrawn reads no longer than this.
 */
const LOG_MILLISECONDS = 300_000;
/** Time in milliseconds after which a log is cut whose client does not read the end of it. */
const CUT_MILLISECONDS = LOG_MILLISECONDS + 30_000;
/** Largest number of bytes of one log. */
const LOG_BYTES = 16 * 1024 * 1024;
/** Interval in milliseconds of empty lines while a guest writes nothing. The page gives up a connection that is silent for 90 s. */
const BEAT_MILLISECONDS = 30_000;

const logQuery = z.object({
  sinceTime: z.iso.datetime({ error: 'must be a time as RFC 3339, in UTC' }).optional(),
});

/** Adds the route. `watching` counts the logs with the watches. */
export function addConsoleLogs(app: App, watching: WaitingRequests): void {
  app.get(
    LOG_PATH,
    {
      exposeHeadRoute: false,
      schema: {
        hide: true,
        params: objectParams('VM', SAMPLE.vm),
        querystring: logQuery,
        response: { 200: z.any() },
      },
    },
    async (request, reply) => {
      const { params } = request;
      const { client, pages } = request.fullCaller();
      const user = await client.username();
      await getAs(client, VMS, params);
      const parameters = {
        container: MACHINE_CONTAINER,
        follow: true,
        timestamps: true,
        limitBytes: LOG_BYTES,
        ...(request.query.sinceTime === undefined ? { tailLines: EARLIER_LINES } : request.query),
      };
      const owner = { user, namespace: accountNamespaceOf(user) ?? params.namespace };
      return await watching.run(reply.raw, owner, async (end) => {
        const log = await pages.stream(pathOf(PODS, params, 'log') + query(parameters), end.signal);
        limitReading(reply.raw, CUT_MILLISECONDS, () => undefined);
        return await reply
          .header('x-content-type-options', 'nosniff')
          .type('text/plain; charset=utf-8')
          .send(Readable.from(beating(log, end)));
      });
    },
  );
}

/**
 * Yields the pieces of a log until {@link LOG_MILLISECONDS} have passed, and an empty line at first and whenever the log is silent. Each line of
 * the log begins with a time, so an empty line is none of the guest. At the end `source` is aborted, whose signal must end `log`.
 */
export async function* beating(log: AsyncIterable<Buffer>, source: AbortController): AsyncGenerator<Buffer> {
  const beat = Buffer.from('\n');
  const end = performance.now() + LOG_MILLISECONDS;
  const pieces = log[Symbol.asyncIterator]();
  let piece = pieces.next();
  let isBetweenLines = true;
  yield beat;
  try {
    for (let left = LOG_MILLISECONDS; left > 0; left = end - performance.now()) {
      const found = await within(piece, Math.min(left, BEAT_MILLISECONDS));
      if (found === undefined) {
        if (isBetweenLines) {
          yield beat;
        }
        continue;
      }
      if (found.done === true) {
        return;
      }
      isBetweenLines = found.value.at(-1) === beat[0];
      yield found.value;
      piece = pieces.next();
    }
  } finally {
    // A log that breaks after its end is of no interest.
    piece.catch(() => undefined);
    // `return` waits for the next piece, and a silent guest sends none.
    source.abort();
    await pieces.return?.();
  }
}

/** Returns the result, or undefined if it does not come in time. */
async function within<T>(result: Promise<T>, milliseconds: number): Promise<T | undefined> {
  const found = new AbortController();
  const late = rest(milliseconds, found.signal).then(() => undefined);
  try {
    return await Promise.race([result, late]);
  } finally {
    found.abort();
  }
}
