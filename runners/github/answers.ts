/** Schemas of the answers of GitHub. They have only the fields that Berth uses, each with a bound. GitHub may send further fields. */
import * as z from 'zod';
import { STATISTICS, type StatisticName } from '../../api/v1alpha1/runnerset.ts';

/** Number that GitHub counts or gives to an object. */
const number = z.int().min(0).max(Number.MAX_SAFE_INTEGER);
/** Largest number of jobs or runners that a status can have. */
const amount = z.int().min(0).max(2_147_483_647);
/** Token in a header. */
const token = z
  .string()
  .max(16_384)
  .regex(/^[\x21-\x7e]+$/);
const name = z.string().max(1_024);
/** Address at GitHub. It must have TLS, because requests to it carry a token. */
const address = z
  .string()
  .max(4_096)
  .transform((text) => URL.parse(text))
  .refine((url) => url?.protocol === 'https:' && url.username === '' && url.password === '')
  .transform((url) => url as URL);

/** Items of one message that are read. GitHub sends 50 at most. */
const ITEMS_LIMIT = 200;
/** Longest JIT configuration in characters. A Secret with user data has 64 KiB at most. */
const JIT_CHARACTERS = 49_152;
/** Years before this one mean that a time is not set. */
const FIRST_YEAR = 2000;

/** A time in milliseconds since the epoch. It is undefined if it is not set. */
const time = z
  .string()
  .max(64)
  .transform((text) => {
    const at = new Date(text);
    return at.getUTCFullYear() >= FIRST_YEAR ? at.getTime() : undefined;
  })
  .optional()
  .catch(undefined);

const counts = Object.fromEntries(STATISTICS.map((one) => [one, amount.default(0)])) as Record<
  StatisticName,
  z.ZodDefault<typeof amount>
>;
const statisticsSchema = z.object(counts);

export const restTokenSchema = z.object({ token, expires_at: z.string().max(64) });
export const tenantSchema = z.object({ url: address, token });

export const groupsSchema = z.object({ value: z.array(z.object({ id: number, name })).max(1_000) });

const scaleSetSchema = z.object({
  id: number,
  name,
  labels: z.array(z.object({ name })).max(1_000).nullish(),
});
export const scaleSetsSchema = z.object({ value: z.array(scaleSetSchema).max(1_000) });
export const createdSetSchema = scaleSetSchema;
export type ScaleSet = z.infer<typeof scaleSetSchema>;

export const sessionSchema = z.object({
  sessionId: z.uuid(),
  messageQueueUrl: address,
  messageQueueAccessToken: token,
  statistics: statisticsSchema.nullish(),
});
export type Session = z.infer<typeof sessionSchema>;

export const messageSchema = z.object({
  messageId: number,
  messageType: z.string().max(256),
  body: z.string().optional().catch(undefined),
  statistics: statisticsSchema.nullish(),
});

/** News about one job. Every field can be missing or wrong, because the statistics alone decide about the number of VMs. */
const itemSchema = z.object({
  messageType: z.string().max(64),
  jobId: z.string().max(128).optional().catch(undefined),
  runnerName: z.string().max(128).optional().catch(undefined),
  runnerRequestId: number.optional().catch(undefined),
  result: z.string().max(64).optional().catch(undefined),
  queueTime: time,
  runnerAssignTime: time,
  finishTime: time,
});
export type JobItem = z.infer<typeof itemSchema>;
export const itemsSchema = z
  .array(z.unknown())
  .transform((items) => items.slice(0, ITEMS_LIMIT).flatMap((item) => itemSchema.safeParse(item).data ?? []));

export const jitSchema = z.object({
  runner: z.object({ id: number, name }),
  encodedJITConfig: z
    .string()
    .max(JIT_CHARACTERS)
    .regex(/^[A-Za-z0-9+/=]+$/),
});

export const agentsSchema = z.object({ value: z.array(z.object({ id: number, name })).max(1_000) });

export const runnersPageSchema = z.object({
  total_count: number,
  runners: z.array(z.object({ id: number, name, status: z.string().max(64), busy: z.boolean() })).max(1_000),
});

/** Body of an error of the tenant service. */
export const errorSchema = z.object({
  typeName: z.string().max(1_024).optional().catch(undefined),
  message: z.string().optional().catch(undefined),
});
