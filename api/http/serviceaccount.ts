/** Service accounts and their tokens, as the HTTP API shows and makes them. */
import * as z from 'zod';
import { continueField, whole } from './request.ts';

/** Shortest and longest lifetime of a token in seconds. The API server has the same bounds. */
const LIFE_MINIMUM = 600;
const LIFE_MAXIMUM = 2 ** 32;
/** Lifetime of a token in seconds if the request gives none: 365 days. */
const LIFE_DEFAULT = 8_760 * 3_600;
const DURATION = /^(?=.)(?:(\d{1,10})h)?(?:(\d{1,10})m)?(?:(\d{1,10})s)?$/;

export const serviceAccountListSchema = z
  .object({
    items: z.array(z.object({ name: z.string(), namespace: z.string() }).meta({ id: 'ServiceAccount' })),
    continue: continueField,
  })
  .meta({ id: 'ServiceAccountList', description: 'The service accounts of a namespace.' });

export const tokenRequestSchema = z
  .object({
    duration: z
      .string()
      .regex(DURATION, {
        error: 'must be hours, minutes and seconds, for example 8760h or 1h30m',
        abort: true,
      })
      .refine((text) => isLife(parseSeconds(text)), {
        error: `must be from ${LIFE_MINIMUM}s to ${LIFE_MAXIMUM}s`,
      })
      .optional()
      .meta({ description: 'Lifetime of the token in hours, minutes and seconds, for example 8760h.' }),
    expirationSeconds: whole(LIFE_MINIMUM, LIFE_MAXIMUM)
      .optional()
      .meta({ description: 'Lifetime of the token in seconds.' }),
    noExpiration: z
      .boolean()
      .optional()
      .meta({ description: 'Whether the token gets the longest lifetime that the API server allows.' }),
  })
  .refine(
    ({ duration, expirationSeconds, noExpiration }) =>
      [duration !== undefined, expirationSeconds !== undefined, noExpiration === true].filter(Boolean)
        .length <= 1,
    { error: 'at most one of duration, expirationSeconds and noExpiration may be given' },
  )
  .meta({ description: 'Lifetime of the token. 8760h when omitted.' });
export type TokenLife = z.infer<typeof tokenRequestSchema>;

export const tokenSchema = z
  .object({
    token: z.string(),
    expirationTimestamp: z
      .string()
      .optional()
      .meta({ description: 'RFC 3339 time at which the token expires.' }),
    expirationSeconds: z.int().meta({
      description:
        'Lifetime of the token in seconds. It is shorter than requested if the API server of the cluster limits lifetimes.',
    }),
    message: z.string().optional().meta({
      description: 'Says that the lifetime is shorter than requested, and why. Absent if it is not.',
    }),
  })
  .meta({ id: 'Token', description: 'A token of a service account. It is shown only in this answer.' });

export type TokenItem = z.infer<typeof tokenSchema>;

/** Returns the answer with a token. `wanted` is the lifetime that the caller asked for, in seconds. */
export function tokenItem(
  {
    token,
    expirationTimestamp,
    grantedSeconds,
  }: { token: string; expirationTimestamp?: string | undefined; grantedSeconds: number },
  wanted: number,
): TokenItem {
  const message =
    grantedSeconds < wanted
      ? `The token lives for ${formatLife(grantedSeconds)} instead of ${formatLife(wanted)}, because the API server of the cluster allows no longer life (--service-account-max-token-expiration)`
      : undefined;
  return { token, expirationTimestamp, expirationSeconds: grantedSeconds, message };
}

/** Returns a lifetime in the form in which requests give it, for example 1h30m. */
function formatLife(seconds: number): string {
  const parts = [
    [Math.floor(seconds / 3_600), 'h'],
    [Math.floor(seconds / 60) % 60, 'm'],
    [seconds % 60, 's'],
  ] as const;
  return parts.map(([count, unit]) => (count === 0 ? '' : `${count}${unit}`)).join('');
}

/** Returns the requested lifetime of a token in seconds. */
export function lifeSeconds({ duration, expirationSeconds, noExpiration }: TokenLife): number {
  if (noExpiration === true) {
    return LIFE_MAXIMUM;
  }
  return expirationSeconds ?? (duration === undefined ? LIFE_DEFAULT : parseSeconds(duration));
}

function parseSeconds(duration: string): number {
  const [, hours = '0', minutes = '0', seconds = '0'] = DURATION.exec(duration) ?? [];
  return Number(hours) * 3_600 + Number(minutes) * 60 + Number(seconds);
}

function isLife(seconds: number): boolean {
  return seconds >= LIFE_MINIMUM && seconds <= LIFE_MAXIMUM;
}
