/** Compares the rights that the chart gives to the accounts of Berth with test/rights.yaml, which names the code that uses each of them. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';

const ROOT = join(import.meta.dirname, '..');
const ROLES = join(ROOT, 'charts/berth/files/rbac');

interface Rule {
  apiGroups?: string[];
  resources?: string[];
  resourceNames?: string[];
  verbs: string[];
}
interface Binding {
  kind?: string;
  metadata: { name: string };
  rules?: Rule[];
  roleRef?: { name: string };
  subjects?: { kind: string; name: string }[];
}
type Use = string | { because: string; place: string };

const TABLE = parse(read('test/rights.yaml')) as Record<string, Record<string, Use>>;
const OBJECTS = readdirSync(ROLES).flatMap((file) =>
  parseAllDocuments(readFileSync(join(ROLES, file), 'utf8')).map((one) => one.toJS() as Binding),
);

function read(file: string): string {
  return readFileSync(join(ROOT, file), 'utf8');
}

/** Returns each right of a ServiceAccount as `verb resource[/subresource][.group][ named NAME]`. */
function rightsOf(account: string): string[] {
  const roles = OBJECTS.filter(({ subjects = [] }) =>
    subjects.some(({ kind, name }) => kind === 'ServiceAccount' && name === account),
  ).map(({ roleRef }) => roleRef?.name);
  const rules = OBJECTS.filter(({ metadata: { name } }) => roles.includes(name)).flatMap(
    (role) => role.rules ?? [],
  );
  return rules.flatMap(expand).toSorted();
}

function expand({ apiGroups = [], resources = [], resourceNames = [''], verbs }: Rule): string[] {
  return apiGroups.flatMap((group) =>
    resources.flatMap((resource) =>
      resourceNames.flatMap((name) =>
        verbs.map(
          (verb) =>
            `${verb} ${resource}${group === '' ? '' : `.${group}`}${name === '' ? '' : ` named ${name}`}`,
        ),
      ),
    ),
  );
}

/** Returns the rights of a key of the table, which can name several verbs. */
function namedRights(key: string): string[] {
  const [, verbs = '', what = ''] = /^([a-z, ]+?) (\S+(?: named \S+)?)$/.exec(key) ?? [];
  return verbs.split(', ').map((verb) => `${verb} ${what}`);
}

describe.each(Object.keys(TABLE))('the account %s', (account) => {
  const uses = TABLE[account] ?? {};

  it('has exactly the rights for which the table names the code that uses them', () => {
    expect(rightsOf(account)).toEqual(Object.keys(uses).flatMap(namedRights).toSorted());
  });

  it.each(Object.entries(uses))('uses its right to %s', (_right, use) => {
    const place = typeof use === 'string' ? use : use.place;
    const [, file = '', text = ''] = /^(\S+): (.+)$/.exec(place) ?? [];
    expect(read(file)).toContain(text);
  });
});
