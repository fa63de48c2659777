import { describe, expect, it, test } from 'vitest';
import { classOf, reasonIn } from '../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../base/errors.ts';
import type { KubeClient } from '../../kube/client.ts';
import { ApiError } from '../../kube/errors.ts';
import { readUserData } from './userdata.ts';

const REF = { namespace: 'ci', name: 'first-boot', key: 'user-data' };
const PASSWORD = 'hunter2-and-more';

/** Returns an API client whose only answer is `answer`. */
function clientOf(answer: () => unknown): Pick<KubeClient, 'get'> {
  return { get: async () => answer() } as unknown as Pick<KubeClient, 'get'>;
}

/** Returns a client that reads a Secret with these bytes at the key `key`. */
function secret(
  bytes: Buffer | string,
  { key = REF.key, type = 'berth.dev/user-data' }: { key?: string; type?: string } = {},
): Pick<KubeClient, 'get'> {
  return clientOf(() => ({ type, data: { [key]: Buffer.from(bytes).toString('base64') } }));
}

function refused(status: number): Pick<KubeClient, 'get'> {
  return clientOf(() => {
    throw new ApiError('away', { status, reason: 'Any' });
  });
}

describe('user data from a Secret', () => {
  it('is the text at the key, up to 64 KiB', async () => {
    const text = 'ä'.repeat(32 * 1024);
    expect(await readUserData(secret(text), REF)).toBe(text);
  });

  test.each<[string, Pick<KubeClient, 'get'>, string, string]>([
    ['no Secret', refused(404), 'SecretNotFound', 'first-boot in ci'],
    ['no such key', secret(PASSWORD, { key: 'other' }), 'SecretNotFound', 'the key user-data'],
    ...[
      'Opaque',
      'kubernetes.io/dockerconfigjson',
      'kubernetes.io/service-account-token',
      'kubernetes.io/tls',
      'kubernetes.io/basic-auth',
      'bootstrap.kubernetes.io/token',
      'helm.sh/release.v1',
      'berth.dev/vnc-password',
      'berth.dev/user-data-2',
    ].map(
      (type) =>
        [
          `the type ${type}`,
          secret(PASSWORD, { type }),
          'UserDataSecretRefused',
          `first-boot in ci has the type ${type}, and guests get only Secrets of type berth.dev/user-data`,
        ] as [string, Pick<KubeClient, 'get'>, string, string],
    ),
    ['too many bytes', secret(`${PASSWORD.repeat(2 ** 12)}x`), 'UserDataInvalid', '65536'],
    ['no text', secret(Buffer.from([0xff, 0xfe, ...Buffer.from(PASSWORD)])), 'UserDataInvalid', 'UTF-8'],
    ['no answer', refused(503), 'SecretNotRead', 'could not read the Secret'],
  ])(
    'with %s makes the machine wait, and the message has no part of the value',
    async (_, client, reason, words) => {
      const error: unknown = await readUserData(client, REF).catch((thrown: unknown) => thrown);
      expect([reasonIn(error), classOf(reasonIn(error), 'VM')]).toEqual([reason, 'mendable']);
      expect(messageOf(error)).toContain(words);
      expect(messageOf(error)).not.toContain(PASSWORD.slice(0, 4));
    },
  );
});
