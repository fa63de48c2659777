/** Checks the rights of users and accounts. It asks the API server about them, and tries actions with kubectl. */
import type { Cluster } from '../../hack/cluster/index.ts';
import { SUBJECT_ACCESS_REVIEWS } from '../../kube/core.ts';
import type { Manifest } from './chart.ts';

export interface Person {
  user: string;
  groups?: string[];
}

/** Returns a ServiceAccount as the API server sees it. */
export function account(namespace: string, name: string): Person {
  return {
    user: `system:serviceaccount:${namespace}:${name}`,
    groups: ['system:serviceaccounts', `system:serviceaccounts:${namespace}`, 'system:authenticated'],
  };
}

/** Returns functions for the cluster of a test, which may start later. */
export function rightsOf(cluster: () => Cluster) {
  async function apply(objects: readonly Manifest[]): Promise<void> {
    const input = objects.map((one) => JSON.stringify(one)).join('\n---\n');
    await cluster().kubectl(['apply', '--server-side', '--force-conflicts', '-f', '-'], { input });
  }

  /** `verb resource[/subresource][.group] [in NAMESPACE] [named NAME]`, or `get /path`. */
  async function may(who: Person, what: string): Promise<boolean> {
    const [verb = '', target = ''] = what.split(' ');
    const namespace = / in (\S+)/.exec(what)?.[1];
    const name = / named (\S+)/.exec(what)?.[1];
    const [, resource = '', subresource, group] = /^([a-z]+)(?:\/([a-z]+))?(?:\.(.+))?$/.exec(target) ?? [];
    const attributes = { verb, resource, ...clean({ subresource, group, namespace, name }) };
    const { status } = await cluster()
      .client()
      .create(SUBJECT_ACCESS_REVIEWS, {
        metadata: {},
        spec: {
          user: who.user,
          groups: who.groups ?? [],
          ...(target.startsWith('/')
            ? { nonResourceAttributes: { path: target, verb } }
            : { resourceAttributes: attributes }),
        },
      });
    return status?.allowed === true;
  }

  async function as(
    who: Person,
    args: readonly string[],
    input?: object,
  ): Promise<{ code: number; said: string }> {
    const impersonation = [`--as=${who.user}`, ...(who.groups ?? []).map((group) => `--as-group=${group}`)];
    const { code, stdout, stderr } = await cluster().kubectl([...impersonation, ...args], {
      allowFailure: true,
      input: JSON.stringify(input ?? {}),
    });
    return { code, said: `${stdout}${stderr}` };
  }

  return { apply, may, as };
}

function clean(values: Record<string, string | undefined>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(values).filter((entry): entry is [string, string] => entry[1] !== undefined),
  );
}
