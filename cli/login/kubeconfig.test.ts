import { chmod, mkdtemp, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { parse } from 'yaml';
import { changeKubeconfig, Kubeconfig } from './kubeconfig.ts';

const ENTRIES = { cluster: { server: 'https://a' }, user: { token: 'new' }, namespace: 'mine' };
const OTHERS = `# of the admin
apiVersion: v1
kind: Config
current-context: work
preferences: {colors: true}
clusters:
- name: shared # both
  cluster: {server: https://old, proxy-url: socks5://x}
contexts:
- context: {cluster: shared, user: admin}
  name: work
- context: {cluster: shared, user: me, namespace: kept}
  name: berth
users:
- name: admin
  user: {client-certificate: a.crt, client-key: a.key}
- name: me
  user: {token: old}
`;

let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-kubeconfig-'));
});

afterAll(async () => await rm(folder, { recursive: true, force: true }));

it('sets a context, and leaves all others as they are', () => {
  const kubeconfig = new Kubeconfig('file', OTHERS);
  kubeconfig.setContext('berth', ENTRIES);
  const before = parse(OTHERS);
  expect(parse(kubeconfig.text())).toEqual({
    ...before,
    'current-context': 'berth',
    clusters: [...before.clusters, { name: 'berth', cluster: ENTRIES.cluster }],
    contexts: [
      before.contexts[0],
      { name: 'berth', context: { cluster: 'berth', user: 'me', namespace: 'kept' } },
    ],
    users: [before.users[0], { name: 'me', user: { token: 'new' } }],
  });
  expect(kubeconfig.text()).toMatch(/^# of the admin\n[^]*shared # both\n/);
  kubeconfig.removeContext('berth');
  const { 'current-context': _current, ...rest } = before;
  expect(parse(kubeconfig.text())).toEqual({
    ...rest,
    contexts: [before.contexts[0]],
    users: [before.users[0]],
  });
  expect(kubeconfig.removeContext('berth')).toBe(false);
});

it.each(['', 'clusters:\ncontexts: null\n', '{"clusters": []}'])('fills the file %j', (text) => {
  const kubeconfig = new Kubeconfig('file', text);
  kubeconfig.setContext('berth', ENTRIES);
  kubeconfig.setContext('berth', ENTRIES);
  expect(parse(kubeconfig.text())).toMatchObject({
    'current-context': 'berth',
    clusters: [{ name: 'berth' }],
    contexts: [{ name: 'berth', context: { cluster: 'berth', user: 'berth', namespace: 'mine' } }],
    users: [{ name: 'berth', user: { token: 'new' } }],
  });
});

it('quotes texts that kubectl, which reads YAML 1.1, would take for other values', () => {
  const kubeconfig = new Kubeconfig('file', '');
  kubeconfig.setContext('on', { ...ENTRIES, user: { token: '1_000' } });
  expect(kubeconfig.text()).toMatch(/^current-context: "on"$/m);
  expect(kubeconfig.text()).toMatch(/^ +token: "1_000"$/m);
});

it.each([
  '{client-certificate: a}',
  '{token: a, as: b}',
  '{exec: {command: other, args: [login]}}',
  '{exec: {command: other}}',
])('keeps the credentials %s', (user) => {
  const text = `contexts: [{name: berth, context: {cluster: a, user: u}}]\nusers: [{name: u, user: ${user}}]`;
  const kubeconfig = new Kubeconfig('file', text);
  expect(() => kubeconfig.setContext('berth', ENTRIES)).toThrow('has other credentials');
  expect(() => kubeconfig.removeContext('berth')).toThrow('has other credentials');
});

it.each(['[', '- a', 'text'])('refuses the file %j by its name', (text) => {
  expect(() => new Kubeconfig('/a/config', text)).toThrow(/^The kubeconfig \/a\/config has a mistake: /);
});

it('replaces the target of a link, hides it from others, and loses no change made at the same time', async () => {
  const [target, link] = [join(folder, 'target'), join(folder, 'link')];
  await writeFile(target, OTHERS);
  await chmod(target, 0o644);
  await symlink(target, link);
  const names = Array.from({ length: 8 }, (_, index) => `context-${index}`);
  const { signal } = new AbortController();
  await Promise.all(
    names.map((name) => changeKubeconfig(link, signal, (kubeconfig) => kubeconfig.setContext(name, ENTRIES))),
  );
  const contexts: { name: string }[] = parse(await readFile(target, 'utf8')).contexts;
  expect(contexts.map(({ name }) => name).toSorted()).toEqual(['berth', ...names, 'work']);
  expect((await stat(target)).mode & 0o777).toBe(0o600);
});
