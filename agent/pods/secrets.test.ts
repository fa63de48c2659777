import { expect, it } from 'vitest';
import { INSECURE_SERVERS_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { classOf, reasonIn } from '../../api/v1alpha1/reasons.ts';
import { insecureServersText } from '../../api/v1alpha1/registrycredentials.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Pod } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import { pullKeyring } from './secrets.ts';

function podWith(annotation?: string): Pod {
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: 'vm',
      namespace: 'platform-ci',
      ...(annotation !== undefined && { annotations: { [INSECURE_SERVERS_ANNOTATION]: annotation } }),
    },
    spec: { containers: [] },
  };
}

const client = {} as KubeClient;

it('a Pod reaches the servers insecurely that its annotation names, for its namespace', async () => {
  const text = insecureServersText([{ scheme: 'http', registry: 'old.example:5000' }]);
  const keyring = await pullKeyring(client, podWith(text));
  expect(keyring.routeTo('old.example:5000')).toEqual({ scheme: 'http', namespace: 'platform-ci' });
  expect(keyring.routeTo('old.example')).toBeUndefined();
});

it.each([undefined, '', '{', '{"registry":"old.example:5000"}', '[{"registry":"old.example:5000"}]'])(
  'a Pod with the annotation %s checks every server',
  async (annotation) => {
    const keyring = await pullKeyring(client, podWith(annotation));
    expect(keyring.routeTo('old.example:5000')).toBeUndefined();
  },
);

it('a machine waits for its pull secret while the API server cannot read Secrets', async () => {
  const get = async () => {
    throw new ApiError('the key service is away', { status: 500, reason: 'InternalError' });
  };
  const pod = podWith();
  const withSecret = { ...pod, spec: { ...pod.spec, imagePullSecrets: [{ name: 'regcred' }] } };
  const asked = pullKeyring({ get } as unknown as KubeClient, withSecret);
  const error: unknown = await asked.catch((thrown: unknown) => thrown);
  expect([reasonIn(error), classOf(reasonIn(error), 'VM')]).toEqual(['SecretNotRead', 'mendable']);
  expect(String(error)).toContain('regcred in platform-ci');
});
