import { once } from 'node:events';
import { beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { parseReference } from '../../../api/v1alpha1/reference.ts';
import { type Reason, ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { type Credential, Keyring } from './credentials.ts';
import type { Registries } from './repository.ts';
import { Access, REMEMBERED_MILLISECONDS } from './access.ts';

const REFERENCE = parseReference('old.example:5000/team/base:1');
const OTHER = parseReference('registry.example/team/base:1');

describe('the permission of a registry that proves nothing', () => {
  const registries = { repository: () => ({}) } as unknown as Registries;
  const marked = (namespace: string): Keyring => {
    return Keyring.parse([], { namespace, servers: [{ scheme: 'http', registry: 'old.example:5000' }] });
  };

  it('counts for the namespace that asked, and for nobody else', async () => {
    const access = new Access(registries, () => 0);
    await access.ask(REFERENCE, marked('platform-a'), () => Promise.resolve('yes'));
    expect(access.isKnown(REFERENCE, marked('platform-a'))).toBe(true);
    expect(access.isKnown(REFERENCE, marked('platform-b'))).toBe(false);
    expect(access.isKnown(REFERENCE, Keyring.parse([]))).toBe(false);
    expect(access.isKnown(REFERENCE)).toBe(false);
  });

  it('is not needed for other registries', async () => {
    const access = new Access(registries, () => 0);
    await access.ask(OTHER, marked('platform-a'), () => Promise.resolve('yes'));
    expect(access.isKnown(OTHER)).toBe(true);
  });
});

describe('the failure of a registry', () => {
  const { signal } = new AbortController();
  let now: number;
  let asked: string[];
  const head = async (digest: string): Promise<string> => {
    asked.push(digest);
    throw new ReasonedError('ImageFetchFailed', 'registry.example answered 503');
  };
  const registries = { repository: () => ({ head }) } as unknown as Registries;

  beforeEach(() => {
    now = 0;
    asked = [];
  });

  it('keeps an image open that was open, and opens nothing else in the repository', async () => {
    const access = new Access(registries, () => now);
    expect(await access.isStillOpen(OTHER, 'sha256:a', signal)).toBe(true);
    expect(access.isKnown(OTHER)).toBe(false);
    expect(access.isKnown(OTHER, Keyring.parse([]))).toBe(false);
  });

  it('saves further requests for the same image for some minutes', async () => {
    const access = new Access(registries, () => now);
    for (const digest of ['sha256:a', 'sha256:a', 'sha256:b']) {
      expect(await access.isStillOpen(OTHER, digest, signal)).toBe(true);
    }
    now = REMEMBERED_MILLISECONDS - 1;
    await access.isStillOpen(OTHER, 'sha256:a', signal);
    expect(asked).toEqual(['sha256:a', 'sha256:b']);
    now = REMEMBERED_MILLISECONDS;
    await access.isStillOpen(OTHER, 'sha256:a', signal);
    expect(asked).toEqual(['sha256:a', 'sha256:b', 'sha256:a']);
  });
});

describe('a registry that accepts connections but never answers', () => {
  const head = async (_: string, signal: AbortSignal): Promise<string> => {
    await once(signal, 'abort');
    throw signal.reason;
  };
  const access = new Access({ repository: () => ({ head }) } as unknown as Registries, () => 0);

  it('delays an image that was open only for a limited time', async () => {
    const late = new AbortController();
    const limit = vi.spyOn(AbortSignal, 'timeout').mockReturnValue(late.signal);
    onTestFinished(() => limit.mockRestore());
    const cancel = new AbortController();
    const isOpen = access.isStillOpen(OTHER, 'sha256:a', cancel.signal);
    late.abort(new DOMException('late', 'TimeoutError'));
    setImmediate(() => cancel.abort(new Error('The limit had no effect')));
    expect(await isOpen).toBe(true);
    expect(limit.mock.calls).toEqual([[15_000]]);
    expect(await access.isStillOpen(OTHER, 'sha256:a', AbortSignal.abort())).toBe(true);
  });

  it('does not delay the end of a request that is cancelled', async () => {
    const cancel = new AbortController();
    const isOpen = access.isStillOpen(OTHER, 'sha256:b', cancel.signal);
    cancel.abort(new Error('cancelled'));
    await expect(isOpen).rejects.toThrow('cancelled');
  });
});

describe('an image for which there are several pull secrets', () => {
  const config = (username: string): string => {
    return JSON.stringify({ auths: { [OTHER.registry]: { username, password: 'p' } } });
  };
  const keyring = Keyring.parse(['first', 'second'].map(config));

  /**
   * Asks with both pull secrets, and at last without one, as `nobody`. `reasons` are the reasons of their errors. A missing reason means
   * that the secret fits.
   */
  async function askWith(reasons: Record<string, Reason>, keys = keyring): Promise<Credential | undefined> {
    const repository = (_reference: unknown, credential?: { username: string }) => ({
      name: credential?.username ?? 'nobody',
    });
    const access = new Access({ repository } as unknown as Registries);
    const { credential } = await access.ask(OTHER, keys, async ({ name }) => {
      const reason = reasons[name];
      if (reason !== undefined) {
        throw new ReasonedError(reason, name);
      }
    });
    return credential;
  }

  it.each(['ImageAccessDenied', 'ImageNotFound'] as const)(
    'is found after %s for the first',
    async (first) => {
      expect(await askWith({ first })).toMatchObject({ username: 'second' });
    },
  );

  it.each([
    ['ImageNotFound', 'ImageAccessDenied', 'first'],
    ['ImageAccessDenied', 'ImageNotFound', 'second'],
    ['ImageNotFound', 'ImageNotFound', 'first'],
    ['ImageAccessDenied', 'ImageAccessDenied', 'first'],
    ['ImageFetchFailed', 'ImageNotFound', 'first'],
  ] as const)('and %s and %s fails with the error that says most', async (first, second, message) => {
    const reasons = { first, second, nobody: 'ImageNotFound' } as const;
    await expect(askWith(reasons)).rejects.toMatchObject({ message });
  });

  it('is found without them if everybody may use it, although the registry refuses both', async () => {
    const refused = { first: 'ImageAccessDenied', second: 'ImageAccessDenied' } as const;
    expect(await askWith(refused)).toBeUndefined();
  });

  const faults = [{ reason: 'PullSecretMissing' as const, message: 'The pull secret third does not exist' }];

  it('is found although another cannot be read', async () => {
    const some = Keyring.parse([config('second')], undefined, { faults });
    expect(await askWith({}, some)).toMatchObject({ username: 'second' });
    expect(await askWith({}, Keyring.parse([], undefined, { faults }))).toBeUndefined();
  });

  it.each<[Record<string, Reason>, Reason]>([
    [{ second: 'ImageAccessDenied', nobody: 'ImageNotFound' }, 'PullSecretMissing'],
    // A credential opened the repository, so the missing Secret is not the cause.
    [{ second: 'ImageNotFound', nobody: 'ImageAccessDenied' }, 'ImageNotFound'],
  ])('and that all fail with %j names those that cannot be read', async (reasons, reason) => {
    const some = Keyring.parse([config('second')], undefined, { faults });
    await expect(askWith(reasons, some)).rejects.toMatchObject({
      reason,
      message: 'second. Credentials were skipped: The pull secret third does not exist',
    });
  });

  it('does not blame entries for other registries', async () => {
    const entries = {
      [OTHER.registry]: { username: 'first', password: 'p' },
      'other.example': { username: 'x' },
    };
    const some = Keyring.parse([JSON.stringify({ auths: entries })]);
    expect(some.faults).toHaveLength(1);
    const refused = { first: 'ImageAccessDenied', nobody: 'ImageAccessDenied' } as const;
    await expect(askWith(refused, some)).rejects.toMatchObject({
      reason: 'ImageAccessDenied',
      message: 'first',
    });
  });
});
