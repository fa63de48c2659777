import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { KubeClient } from './client.ts';
import { ApiError, CredentialError } from './errors.ts';
import { follow, followAll } from './follow.ts';
import type { KubeObject, Resource } from './objects.ts';
import type { Transport } from './transport.ts';

const TYPE: Resource<KubeObject> = { apiVersion: 'v1', kind: 'Pod', plural: 'pods', namespaced: true };

beforeEach(() => void vi.useFakeTimers({ shouldAdvanceTime: true, advanceTimeDelta: 200 }));
afterEach(() => void vi.useRealTimers());

function object(resourceVersion: string, uid = 'u'): KubeObject {
  return { apiVersion: 'v1', kind: 'Pod', metadata: { name: 'a', namespace: 'n', uid, resourceVersion } };
}

function event(type: string, content: object): string {
  return `${JSON.stringify({ type, object: content })}\n`;
}

const GONE = event('ERROR', { kind: 'Status', code: 410, reason: 'Expired', message: 'too old' });

/** Follows an object over watches with these answers: the lines of a watch, or an error. `read` is what a GET returns. */
async function followed(
  watches: (string[] | Error)[],
  read?: KubeObject,
  trim?: (version: KubeObject) => KubeObject,
): Promise<{ versions: string[]; paths: string[] }> {
  const paths: string[] = [];
  const stream = (path: string) => {
    paths.push(path);
    const answer = watches[paths.length - 1] ?? [];
    return answer instanceof Error
      ? Promise.reject(answer)
      : Promise.resolve(answer.map((line) => Buffer.from(line)));
  };
  const get = () =>
    read === undefined
      ? Promise.reject(new ApiError('no', { status: 404, reason: 'NotFound' }))
      : Promise.resolve(read);
  const versions: string[] = [];
  for await (const { metadata } of follow({
    client: { get } as unknown as KubeClient,
    watches: { stream } as unknown as Transport,
    type: TYPE,
    from: object('1').metadata,
    ...(trim === undefined ? {} : { trim }),
    signal: new AbortController().signal,
  })) {
    versions.push(metadata.resourceVersion ?? '');
  }
  return { versions, paths };
}

it('resumes a watch that ended or broke at the last position, which a bookmark moves too', async () => {
  const { versions, paths } = await followed([
    [event('MODIFIED', object('2'))],
    new Error('connection lost'),
    new ApiError('busy', { status: 429, reason: 'TooManyRequests' }),
    [event('BOOKMARK', object('9'))],
    [event('DELETED', object('10'))],
  ]);
  expect(versions).toEqual(['2']);
  expect(paths.map((path) => new URLSearchParams(path.split('?')[1]).get('resourceVersion'))).toEqual([
    '1',
    '2',
    '2',
    '2',
    '9',
  ]);
});

it('reads the object when its position was compacted', async () => {
  const last = [event('DELETED', object('8'))];
  expect((await followed([[GONE], last], object('7'))).versions).toEqual(['7']);
});

it('reads the object after a connection that was not opened in time, because it may have changed', async () => {
  const late = Object.assign(new Error('no answer in time'), { code: 'ETIMEDOUT' });
  expect((await followed([late, [event('DELETED', object('8'))]], object('7'))).versions).toEqual(['7']);
  expect((await followed([late])).versions).toEqual([]);
});

it('ends when the object is gone after a break, or another one has its name', async () => {
  expect((await followed([[GONE]])).versions).toEqual([]);
  expect((await followed([[GONE]], object('7', 'another'))).versions).toEqual([]);
});

it('throws when the API server refuses', async () => {
  const refusal = new ApiError('no such kind', { status: 404, reason: 'NotFound' });
  await expect(followed([refusal])).rejects.toBe(refusal);
});

it('throws when the session of the user has ended and stays so, because only a new sign-in helps', async () => {
  const ended = new CredentialError('The session has ended. Sign in again', 3);
  const outcome = followed([ended, ended, ended, [GONE]]).catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(30_000);
  expect(await outcome).toBe(ended);
});

it('goes on after a credential plug-in that fails for a moment', async () => {
  const away = new CredentialError('The identity provider does not answer', 5);
  const watches = [[event('MODIFIED', object('2'))], away, away, [event('DELETED', object('3'))]];
  expect((await followed(watches)).versions).toEqual(['2']);
});

it('trims the versions of watches and reads, and no error', async () => {
  const trim = ({ metadata, ...rest }: KubeObject): KubeObject => ({
    ...rest,
    metadata: { ...metadata, resourceVersion: `${metadata.resourceVersion} trimmed` },
  });
  const watches = [[event('MODIFIED', object('2'))], [GONE], [event('DELETED', object('8'))]];
  expect((await followed(watches, object('7'), trim)).versions).toEqual(['2 trimmed', '7 trimmed']);
});

it('resumes a watch of all objects at the version of their list, not at that of the last object', async () => {
  const end = new AbortController();
  const positions: (string | null)[] = [];
  const stream = async (path: string) => {
    positions.push(new URLSearchParams(path.split('?')[1]).get('resourceVersion'));
    if (positions.length > 1) {
      throw new Error('connection lost');
    }
    return [Buffer.from(GONE)];
  };
  const list = async () => ({ items: [object('8'), object('3')], resourceVersion: '9' });
  const versions = followAll(
    {
      client: { list } as unknown as KubeClient,
      watches: { stream } as unknown as Transport,
      type: TYPE,
      signal: end.signal,
    },
    { namespace: 'n', resourceVersion: '1' },
  );
  expect((await versions.next()).value).toEqual(object('8'));
  expect((await versions.next()).value).toEqual(object('3'));
  const last = versions.next().catch(() => undefined);
  await expect.poll(() => positions.length).toBeGreaterThan(2);
  end.abort(new Error('enough'));
  await last;
  expect(positions.slice(0, 3)).toEqual(['1', '9', '9']);
});
