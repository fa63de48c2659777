/**
 * Times of jobs in the last 24 hours, as the operator stores them for the HTTP API: how long VMs waited until they ran, and how long they ran.
 * A document is about one namespace, and has one entry for each five minutes in which something was measured.
 */
import * as z from 'zod';
import { parseJson } from '../../base/json.ts';
import { JOB_TIMES_LIMIT } from './jobtimelimits.ts';
import { count, timestamp } from './schema.ts';

const number = count('A number of jobs, or a time in seconds.', Number.MAX_SAFE_INTEGER);

const jobTimesSchema = z.object({
  /** UID of the namespace. Another namespace with the same name, made after this one was deleted, has none of its times. */
  namespaceUid: z.string().min(1).max(64),
  /** Time from which everything was measured. Earlier times are lost, because another process of the operator measured them. */
  begunAt: timestamp('Time from which the operator has measured.'),
  /**
   * Numbers of each entry: its five minutes, counted since 1970; the count, the sum and the longest of the waits in seconds; and the same
   * three numbers of the runs. They have no names, because a ConfigMap has room for few bytes.
   */
  entries: z.array(z.tuple([number, number, number, number, number, number, number])).max(JOB_TIMES_LIMIT),
});
export type JobTimes = z.infer<typeof jobTimesSchema>;
export type JobTimesEntry = JobTimes['entries'][number];

/** Limits of a document. An entry has seven numbers of up to 16 digits in the worst case, and one bracket. */
const LIMITS = { bytes: 64 * 1024, items: JOB_TIMES_LIMIT * 8 + 8 };

/** Returns the document. The result is undefined if the text has another form. */
export function parseJobTimes(text: string): JobTimes | undefined {
  try {
    return jobTimesSchema.safeParse(parseJson(text, LIMITS)).data;
  } catch {
    return undefined;
  }
}
