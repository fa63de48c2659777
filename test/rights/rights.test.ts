/**
 * Compares the rights that the chart gives to programs with the rights that they used in a whole run of tests. The last project of a whole
 * run is this one. A right that no program used is a failure, unless test/rights/exceptions.yaml gives a reason.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { whyNoNodes } from '../../hack/cluster/nodes/requirements.ts';
import { type UsedRight, usedRights } from '../../hack/cluster/usedrights.ts';
import { ACCOUNT_HOSTS, EVERYTHING, type Manifest, manifests, uninstallHook } from '../support/chart.ts';
import { sharedCluster } from '../support/cluster.ts';
import { unless } from '../support/unless.ts';

/** Accounts that have each role, as in the log of used rights. */
const PROGRAMS: Readonly<Record<string, readonly string[]>> = {
  'berth-operator': ['berth-operator'],
  'berth-operator-api-server': ['berth-operator'],
  'berth-operator-serving-signer': ['berth-operator'],
  'berth-agent': ['berth-agent'],
  'berth-agent-leases': ['berth-agent'],
  'berth-agent-events': ['berth-agent'],
  'berth-server': ['berth-server'],
  'berth-server-power': ['berth-server'],
  'berth-runners': ['berth-runners'],
  'berth-runners-places': ['berth-runners'],
  'berth-uninstall': ['berth-uninstall'],
  'berth-image-storage-writers': ['host'],
  'berth-metrics-reader': ['prometheus', 'metrics-reader'],
  'berth-host-metrics-reader': ['prometheus'],
};
/** Roles of people, who choose what they do. */
const PEOPLE = /^berth-(?:view|edit|admin|power-user|cluster-info|role-.+)$/;

interface Rule {
  apiGroups?: string[];
  resources?: string[];
  resourceNames?: string[];
  nonResourceURLs?: string[];
  verbs: string[];
}
interface Right {
  readonly verb: string;
  readonly resource: string;
  /** Empty for any name. */
  readonly name: string;
  /** Namespace of a Role. The namespace is empty for a ClusterRole, whose rights are for all namespaces. */
  readonly namespace: string;
}

interface Exception {
  readonly because: string;
  /** Right of the same role that the program must have used, because the API server asks for the right of the exception then. */
  readonly with?: string;
}

const EXCEPTIONS = parse(readFileSync(join(import.meta.dirname, 'exceptions.yaml'), 'utf8')) as Record<
  string,
  Record<string, Exception> | undefined
>;
const used = usedRights();
/** A machine that cannot run nodes skips tests that use some of the rights. */
const unfit = used === undefined ? 'only a whole run of all tests records the used rights' : whyNoNodes();

function rightsOf({ metadata: { namespace = '' }, rules }: Manifest): Right[] {
  return (rules as Rule[]).flatMap(
    ({ apiGroups = [''], resources = [], resourceNames = [''], nonResourceURLs = [], verbs }) => {
      const kinds = apiGroups.flatMap((group) =>
        resources.map((resource) => (group === '' ? resource : `${resource}.${group}`)),
      );
      return [...kinds, ...nonResourceURLs].flatMap((resource) =>
        resourceNames.flatMap((name) => verbs.map((verb) => ({ verb, resource, name, namespace }))),
      );
    },
  );
}

function format({ verb, resource, name }: Right): string {
  return `${verb} ${resource}${name === '' ? '' : ` named ${name}`}`;
}

function isUsed(right: Right, accounts: readonly string[]): boolean {
  // If the API server cannot start a watch with a list, the programs send a list before the watch. The API server of the tests can.
  const verbs = right.verb === 'list' ? ['list', 'watch'] : [right.verb];
  return (used ?? []).some(
    (one: UsedRight) =>
      accounts.includes(one.account) &&
      verbs.includes(one.verb) &&
      one.resource === right.resource &&
      (right.name === '' || one.name === right.name) &&
      (right.namespace === '' || one.namespace === right.namespace),
  );
}

describe('a whole run', unless(unfit), () => {
  let roles: Manifest[];

  beforeAll(async () => {
    const { uninstall, agent } = EVERYTHING;
    const objects = [
      ...(await manifests({ ...EVERYTHING, agent: { ...agent, ...ACCOUNT_HOSTS } })),
      ...(await uninstallHook(await sharedCluster(), { uninstall })),
    ];
    roles = objects.filter(({ kind }) => kind === 'ClusterRole' || kind === 'Role');
  });

  test('knows for each role of the chart whether programs or people have it', () => {
    const names = new Set(roles.map(({ metadata }) => metadata.name));
    const programs = [...names].filter((name) => !PEOPLE.test(name));
    expect(programs.toSorted()).toEqual(Object.keys(PROGRAMS).toSorted());
  });

  describe.each(Object.entries(PROGRAMS))('role %s', (name, accounts) => {
    test('uses each right, except for those with a reason', () => {
      const rights = roles.filter(({ metadata }) => metadata.name === name).flatMap(rightsOf);
      const unused = rights.filter((right) => !isUsed(right, accounts)).map(format);
      const exceptions = EXCEPTIONS[name] ?? {};
      expect(unused.toSorted()).toEqual(Object.keys(exceptions).toSorted());
      const asked = Object.values(exceptions).flatMap((exception) => exception.with ?? []);
      expect(rights.map(format)).toEqual(expect.arrayContaining(asked));
      expect(unused.filter((right) => asked.includes(right))).toEqual([]);
    });
  });
});
