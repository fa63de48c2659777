/**
 * What the command `berth` writes, byte for byte: the command lines that integrations call stand with their answers in
 * test/fixtures/commands. Also `create` of each kind, each list through jq, colours, and a cluster without one of the kinds.
 */
import { execFileSync } from 'node:child_process';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { MACHINE_CONDITION } from '../../api/v1alpha1/names.ts';
import {
  EMULATORS,
  IMAGES,
  ISOS,
  SERVERS,
  VM_CONFIGS,
  VM_POOLS,
  VM_SNAPSHOTS,
} from '../../api/v1alpha1/resources.ts';
import { run } from '../../base/exec.ts';
import { createProgram } from '../../cli/program.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { Emulators } from '../fixtures/emulatorobjects.ts';
import { VMs } from '../fixtures/vms.ts';
import { accountToken, writeTokenKubeconfig } from '../support/members.ts';
import { BerthCommand, type CommandResult } from '../wires/berth.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { makeTerminal } from '../fixtures/terminals.ts';

const namespace = 'platform-default';
/** Time limit of a job that deploys and deletes a VM on a simulated host. */
const JOB_MILLISECONDS = 60_000;
/** Time limit of all command lines of the fixtures. Each starts the command once, which takes seconds on a busy machine. */
const FORMS_MILLISECONDS = 300_000;
const FORMS = join(import.meta.dirname, '../fixtures/commands/forms.txt');

let cluster: Cluster;
let operator: OperatorProcess;
let vms: VMs;
let emulators: Emulators;
/** Host whose agent is the test. The other host is simulated. */
let bare: ActingHost;
let command: BerthCommand;
/** Kubeconfigs by the names that the fixtures use. Without one, the user has the role dev. */
let kubeconfigs: Record<string, string>;

beforeAll(async () => {
  cluster = await startCluster({ name: `cli-forms-${process.pid}`, hosts: 1 });
  operator = await cluster.startOperator({ config: { emulators: { architectures: ['amd64'] } } });
  vms = new VMs(cluster);
  emulators = new Emulators(cluster);
  const images = [{ names: ['registry.example/stored:1'], sizeBytes: 1_000_000_000 }];
  bare = await ActingHost.join(cluster.client(), 'bare', { architecture: 'amd64', images });
  await bare.placeable();
  await vms.create('paired', { placement: { node: 'bare' }, cpu: 1, memory: '512Mi' });
  await bare.waitForPod({ namespace, name: 'paired' });
  await bare.run({ namespace, name: 'paired' });
  await vms.waitForPhase('paired', 'Running');
  const token = await accountToken(cluster, { namespace, name: 'dev' }, { role: 'berth-role-dev' });
  command = await BerthCommand.make(await writeTokenKubeconfig(cluster, token, 'dev'));
  kubeconfigs = {
    admin: cluster.kubeconfig,
    stale: await writeTokenKubeconfig(cluster, 'eyJhbGciOiJub25lIn0.e30.', 'stale'),
    own: join(cluster.directory, 'cli-own.kubeconfig'),
  };
  copyFileSync(kubeconfigs['stale'] ?? '', kubeconfigs['own'] ?? '');
  await waitFor('the rights', async () => (await berth('vm', 'list')).code === 0);
});

afterAll(async () => {
  await command?.[Symbol.asyncDispose]();
  await bare?.silence();
  await operator?.stop();
  await cluster?.stop();
});

async function berth(...args: string[]): Promise<CommandResult> {
  return await command.run(args);
}

/** Runs the command as a cluster admin. */
async function berthAsAdmin(...args: string[]): Promise<CommandResult> {
  return await command.run(args, { kubeconfig: cluster.kubeconfig });
}

describe('the forms that integrations call', () => {
  it('answer what the fixtures have, byte for byte on both streams', {
    timeout: FORMS_MILLISECONDS,
  }, async () => {
    const text = readFileSync(FORMS, 'utf8');
    const header = text.slice(0, text.indexOf('$ '));
    const answers: string[] = [];
    for (const line of text.split('\n').filter((one) => one.startsWith('$ '))) {
      answers.push(`${line}\n${await answerTo(line)}`);
    }
    const answered = header + answers.join('\n');
    expect(answered).toBe(text);
  });

  it('give a job with bash and jq the address of its VM', async () => {
    const job = `set -euo pipefail
      vm=$(berth vm deploy --config ci --generate-name job --reserve-port 9022:22 -o json 2>&1)
      name=$(jq -er '.[0].name' <<<"$vm") ip=$(jq -er '.[0].ip' <<<"$vm") port=$(jq -er '.[0].ssh' <<<"$vm")
      berth vm delete "$name" | grep -qx "Successfully deleted vm $name"
      if again=$(berth vm delete "$name" 2>&1); then exit 9; fi
      grep -q 'not found' <<<"$again"
      echo "$ip:$port"`;
    const environment = command.installed();
    const printed = await run('bash', ['-c', job], { environment, timeoutMilliseconds: JOB_MILLISECONDS });
    expect(printed).toBe('192.0.2.1:9022\n');
  });

  async function untilReady(name: string): Promise<void> {
    await waitFor(`image ${name} to be ready`, async () => {
      const { status } = await cluster.client().get(IMAGES, { namespace, name });
      return status?.phase === 'Ready';
    });
  }

  /** Runs the command line, while the test acts as the agent if the line needs one. */
  async function answerTo(line: string): Promise<string> {
    const [, kubeconfig = '', output = ''] = /^\$ (?:KUBECONFIG=(\w+) )?berth (.*)$/.exec(line) ?? [];
    if (output.startsWith('image list')) {
      await untilReady('base');
    }
    const [, verb, name = ''] = /^emulator (deploy|delete) (pixel|plain)/.exec(output) ?? [];
    const acting =
      verb === 'deploy' ? boot(name) : verb === 'delete' ? bare.end(emulators.podRef(name)) : undefined;
    const path = kubeconfigs[kubeconfig];
    const result = command.run(output.split(' '), path === undefined ? {} : { kubeconfig: path });
    const [{ code, out, err }] = await Promise.all([result, acting]);
    return `${shown(out, '')}${shown(err, '2> ')}exit ${code}\n`;
  }

  async function boot(name: string): Promise<void> {
    const pod = emulators.podRef(name);
    await bare.waitForPod(pod);
    await bare.setPodCondition(pod, {
      type: MACHINE_CONDITION,
      status: 'True',
      reason: 'running',
      message: JSON.stringify({ adb: { address: '10.0.0.17', port: 5555 } }),
    });
    await bare.run(pod);
  }
});

describe('create', () => {
  const yaml = (kind: string, name: string, spec: object, more: object = {}) =>
    `${JSON.stringify({ apiVersion: 'berth.dev/v1alpha1', kind, metadata: { name, ...more }, spec })}\n`;

  it('makes the objects of a file, and refuses a file with a mistake before it makes anything', async () => {
    const file = (kind: string, input: string, ...flags: string[]) =>
      command.run([kind, 'create', '-f', '-', ...flags], { input });
    const both = `# Two\n---\n${yaml('VMConfig', 'one', { image: 'a' })}---\n${yaml('VMConfig', 'two', { iso: 'b' })}`;
    expect(await file('vmconfig', both)).toEqual({
      code: 0,
      out: 'Successfully created vmconfig one\nSuccessfully created vmconfig two\n',
      err: '',
    });
    const { metadata, spec } = await cluster.client().get(VM_CONFIGS, { namespace, name: 'two' });
    expect([spec, metadata.annotations]).toMatchObject([
      { iso: 'b' },
      { 'berth.dev/created-by': `system:serviceaccount:${namespace}:dev` },
    ]);
    const vm = yaml('VM', 'filed', { image: 'registry.example/guest:1', powerState: 'Stopped' });
    expect(await file('vm', vm)).toEqual({ code: 0, out: 'Successfully created vm filed\n', err: '' });
    const path = join(cluster.directory, 'iso.yaml');
    const source = { http: { url: 'https://files.example/a.iso', sha256: 'a'.repeat(64) } };
    writeFileSync(path, yaml('ISO', 'installer', { source }, { namespace }));
    const made = await berth('iso', 'create', '-f', path, '-o', 'json');
    expect([made.err, JSON.parse(made.out)]).toMatchObject(['', [{ name: 'installer', state: 'Updating' }]]);
    const good = yaml('VMConfig', 'three', { image: 'a' });
    const refused = await Promise.all([
      file('vmconfig', yaml('VMConfig', 'odd', { imgae: 'a' })),
      file('vmconfig', `${good}---\n${yaml('VM', 'odd', { image: 'a' })}`),
      file('vmconfig', `${good}---\n{`),
      file('vmconfig', '{apiVersion: berth.dev/v1alpha1, kind: VMConfig, metadata: [], spec: {image: a}}'),
      file('vmconfig', ''),
      file('image', yaml('Image', 'odd', { source: {} }, { namespace: 'platform-a' }), '-n', namespace),
      file('image', yaml('Image', 'odd', { source: {} }), '--size', '1'),
      berth('image', 'create', '-f', join(cluster.directory, 'absent.yaml')),
    ]);
    expect(refused.map(({ code, err }) => [code, err])).toEqual([
      [1, expect.stringContaining('unknown field "spec.imgae"')],
      [
        2,
        expect.stringMatching(
          /^error: -: object 2: the object is VM of .*, but must be VMConfig of berth\.dev/,
        ),
      ],
      [2, expect.stringMatching(/^error: -: object 2: /)],
      [2, expect.stringContaining('metadata needs a name')],
      [2, 'error: - has no object\n'],
      [2, expect.stringMatching(/object of namespace platform-a, but --namespace is platform-default/)],
      [2, expect.stringContaining('Use -f without a name and without other flags')],
      [2, expect.stringMatching(/^error: The file .*absent\.yaml does not exist\n$/)],
    ]);
    const configs = await cluster.client().list(VM_CONFIGS, { namespace });
    expect(configs.items.map(({ metadata: { name } }) => name)).not.toContain('three');
  });

  const reference = 'registry.example/team/disk:1';

  it('makes images and ISOs from flags, by the rules of the HTTP API', async () => {
    await cluster.client().create(IMAGES, {
      metadata: { name: 'origin', namespace },
      spec: {
        description: 'tools',
        architecture: 'arm64',
        source: { empty: { size: '1G' } },
        imagePullSecrets: [{ name: 'regcred' }],
      },
    });
    await cluster.createNamespace('platform-own');
    const elsewhere = await berthAsAdmin(
      'image',
      'create',
      'mine',
      '--copy-of',
      'origin',
      '-n',
      'platform-own',
    );
    expect(elsewhere).toEqual({ code: 0, out: 'Successfully created image mine\n', err: '' });
    const mine = await cluster.client().get(IMAGES, { namespace: 'platform-own', name: 'mine' });
    expect(mine.spec).toEqual({
      description: 'tools',
      architecture: 'arm64',
      source: { copyOf: { name: 'origin', namespace } },
    });
    const url = ['--url', 'https://files.example/b.iso', '--sha256', 'b'.repeat(64), '--type', 'amd64'];
    const [pulled, fetched] = await Promise.all([
      berth('image', 'create', 'pulled', '--reference', reference, '-d', 'of the team'),
      berth('iso', 'create', 'fetched', ...url),
    ]);
    expect([pulled.code, fetched.code]).toEqual([0, 0]);
    const [image, iso] = await Promise.all([
      cluster.client().get(IMAGES, { namespace, name: 'pulled' }),
      cluster.client().get(ISOS, { namespace, name: 'fetched' }),
    ]);
    expect(image.spec).toEqual({ description: 'of the team', source: { registry: { reference } } });
    expect(iso.spec).toMatchObject({ architecture: 'amd64', source: { http: { sha256: 'b'.repeat(64) } } });
    const more = ['--format', 'Raw', '--os', 'Linux', '--ttl-seconds-after-finished', '60'];
    const shared = ['image', 'create', 'shared', '--shared-file', 'disks/a.raw', ...more, '-o', 'json'];
    expect(JSON.parse((await berth(...shared)).out)).toMatchObject([
      { name: 'shared', sharedFile: 'disks/a.raw', format: 'Raw', os: 'Linux' },
    ]);
    expect((await cluster.client().get(IMAGES, { namespace, name: 'shared' })).spec).toEqual({
      source: { sharedFile: { path: 'disks/a.raw' } },
      format: 'Raw',
      os: 'Linux',
      ttlSecondsAfterFinished: 60,
    });
    const verbs = await Promise.all([
      berth('image', 'copy', 'origin', 'copied', '-d', 'second'),
      berth('image', 'generate', 'blank', '2'),
      berth('iso', 'set-description', 'fetched', 'for guests'),
      berth('image', 'set-description', 'pulled', ''),
    ]);
    expect(verbs.map(({ out }) => out)).toEqual([
      'Successfully created image copied\n',
      'Successfully created image blank\n',
      'Successfully set the description of iso fetched\n',
      'Successfully set the description of image pulled\n',
    ]);
    const { items } = await cluster.client().list(IMAGES, { namespace });
    const specs = new Map(items.map(({ metadata, spec }) => [metadata.name, spec]));
    const copyOf = { name: 'origin', namespace };
    expect(specs.get('copied')).toMatchObject({ description: 'second', source: { copyOf } });
    expect(specs.get('blank')).toEqual({ source: { empty: { size: '2G' } } });
    expect(specs.get('pulled')).not.toHaveProperty('description');
    const described = await cluster.client().get(ISOS, { namespace, name: 'fetched' });
    expect(described.spec.description).toBe('for guests');
  });

  it('shows pushes with their progress, and no other image', async () => {
    const push = { reference, requestedAt: '2026-11-23T12:00:00Z' };
    const spec = { source: { fromVM: { name: 'desk' } }, push };
    await cluster.client().create(IMAGES, { metadata: { name: 'vm-push-abcde', namespace }, spec });
    const all = await berth('vm', 'get-push-status', '-o', 'json');
    // The cluster has no image storage, so the push fails as soon as the operator has seen it.
    const status = expect.stringMatching(/^(?:Pending|Failed)$/);
    const item = { jobName: 'vm-push-abcde', image: reference, status };
    expect(JSON.parse(all.out)).toEqual([expect.objectContaining(item)]);
    const named = await berth('vm', 'get-push-status', 'vm-push-abcde', 'origin');
    expect([named.code, named.err]).toEqual([4, expect.stringContaining('push "origin" not found')]);
    expect(named.out).toMatch(
      /^NAME +STATUS +PROGRESS +IMAGE +MESSAGE\nvm-push-abcde +(?:Pending|Failed) +registry\.example/,
    );
  });

  it('refuses what cannot be, and names the flag', async () => {
    const url = ['--url', 'https://files.example/b.iso'];
    const refused = await Promise.all([
      berth('image', 'create', 'origin', '--size', '1G'),
      berth('image', 'create', 'bad', '--size', '1G', '--copy-of', 'origin'),
      berth('image', 'create', 'bad', '--copy-of', 'origin', '--os', 'Linux'),
      berth('image', 'create', 'bad', '--shared-file', '../a'),
      berth('iso', 'create', 'bad'),
      berth('iso', 'create', 'bad', ...url),
      berth('iso', 'create', 'bad', ...url, '--sha256', 'abc'),
      berth('iso', 'copy', 'absent', 'bad'),
      berth('image', 'generate', 'Bad_Name', '1G'),
      berth('image', 'create', '--size', '1G'),
      berth('vmconfig', 'create', 'bad'),
      berth('vmconfig', 'create', 'bad', '--image', 'a', '--display-width', '9', '--memory', '1Mi'),
      berth('vmconfig', 'create', 'ci', '--image', 'a'),
      berth('vmconfig', 'create', 'n'.repeat(51), '--image', 'a'),
    ]);
    expect(refused.map(({ code, err }) => [code, err])).toEqual([
      [1, expect.stringContaining('"origin" already exists')],
      [2, expect.stringContaining('Name one source: --size, --copy-of, --reference, --url or --shared-file')],
      [
        2,
        expect.stringContaining(
          'Do not use --os with --copy-of, because a copy has the values of its source',
        ),
      ],
      [1, 'error: --shared-file: path must be relative and must not contain ..\n'],
      [2, expect.stringContaining('Name one source: --copy-of, --reference, --url or --shared-file')],
      [2, expect.stringContaining('Use --url and --sha256 together')],
      [1, expect.stringMatching(/^error: --sha256: .*abc/)],
      [4, expect.stringContaining('iso "absent" not found')],
      [2, expect.stringContaining('"Bad_Name"')],
      [2, expect.stringContaining('Give the name of the image, or a file with -f')],
      [2, expect.stringContaining('--image, --iso or both')],
      [1, expect.stringMatching(/--display-width: .*9[^]*--memory: .*1Mi/)],
      [1, expect.stringContaining('"ci" already exists')],
      [1, expect.stringMatching(/^error: the name: .*50/)],
    ]);
    expect(refused.map(({ out }) => out).join('')).toBe('');
  });
});

it('each list is an array for jq, with nothing on the error stream', async () => {
  await cluster
    .client()
    .create(EMULATORS, { metadata: { name: 'listed', namespace }, spec: { vmName: 'paired' } });
  const url = 'https://plug.example';
  const webhook = { onURL: url, offURL: url, statusURL: url, pattern: '(on|off)' };
  const server = { name: `${namespace}-listed` };
  await cluster
    .client()
    .create(SERVERS, { metadata: server, spec: { addresses: ['192.0.2.250'], controller: { webhook } } });
  const pool = { replicas: 0, template: { spec: { image: 'base' } } };
  await cluster.client().create(VM_POOLS, { metadata: { name: 'listed', namespace }, spec: pool });
  await cluster
    .client()
    .create(VM_SNAPSHOTS, { metadata: { name: 'listed', namespace }, spec: { vmName: 'paired' } });
  const add = ['registry', 'add', 'https://registry.example', '--username', 'ci', '--password-stdin'];
  await command.run(add, { kubeconfig: cluster.kubeconfig, input: 'password' });
  await berthAsAdmin('rolebinding', 'add-subject', '--user', 'ann@example.com');
  const nouns = await nounsWith('list');
  expect(nouns).toEqual(expect.arrayContaining(['vm', 'vmconfig', 'image', 'iso', 'emulator', 'node']));
  const lists = await Promise.all(
    nouns.map(async (noun) => {
      const options = { kubeconfig: cluster.kubeconfig, together: true };
      const { code, out } = await command.run([noun, 'list', '-o', 'json'], options);
      const filter = '[type, (length > 0), (map(type) | unique)]';
      return [noun, code, execFileSync('jq', ['-c', filter], { input: out, encoding: 'utf8' })];
    }),
  );
  // There are no emulator configs.
  // These nouns of another platform have no objects here.
  const empty = ['emulator-config', 'remote-image', 'remote-iso'];
  const expected = (noun: string) =>
    empty.includes(noun) ? '["array",false,[]]\n' : '["array",true,["object"]]\n';
  expect(lists).toEqual(nouns.map((noun) => [noun, 0, expected(noun)]));
  await cluster.client().delete(SERVERS, server);
});

/** Returns the nouns of the command that have the verb. */
async function nounsWith(verb: string): Promise<string[]> {
  const { commands } = await createProgram(makeTerminal(), () => true);
  return commands
    .filter(({ commands: verbs }) => verbs.some((one) => one.name() === verb))
    .map((noun) => noun.name());
}

it('nothing has colours on a terminal, with NO_COLOR and without it', async () => {
  const wait = 'berth vm wait paired --for condition=Absent --timeout 1s';
  const calls = `berth vm list; berth vm --help; berth vm lst; ${wait}`;
  const settings = ['export NO_COLOR=1', 'export FORCE_COLOR=3'];
  const shown = await Promise.all(
    settings.map(async (setting) => await command.inTerminal(`${setting}; ${calls}; true`).ended()),
  );
  for (const { stdout } of shown) {
    expect(stdout).toMatch(/^NAME +STATUS/);
    expect(stdout).toContain('Did you mean one of list, ls?');
    // The progress of the wait clears its line. Nothing else controls the terminal.
    expect(stdout).toContain('\r\u001b[K');
    expect(stdout.replaceAll('\r\u001b[K', '')).not.toContain('\u001b');
  }
});

it('a person confirms what cannot be undone, and no script is asked', async () => {
  expect((await berth('vmconfig', 'create', 'asked', '--image', 'a')).code).toBe(0);
  const asked = async (answer: string) => {
    const call = command.inTerminal('berth vmconfig delete asked; echo "end $?"');
    await call.prints(/Delete vmconfig asked\? This cannot be undone \[y\/N\] $/);
    call.type(answer);
    return (await call.result()).stdout;
  };
  const refused = /error: You did not answer yes, so nothing was changed\s+end 130/;
  expect(await asked('n\n')).toMatch(refused);
  expect(await asked('\n')).toMatch(refused);
  const ci = await command.inTerminal('export CI=true; berth vm revert absent; echo "end $?"').result();
  expect(ci.stdout).toMatch(/^error: vm "absent" not found in namespace platform-default\s+end 4/);
  expect(await asked('y\n')).toMatch(/Successfully deleted vmconfig asked\s+end 0/);
});

it('a namespace of a flag or variable may have the other prefix of the settings', async () => {
  command.configure('aliases: {namespacePrefix: ci-, namespaceVariable: CI_NAMESPACE}\n');
  const { out } = await berth('vmconfig', 'get', 'ci', '-n', 'ci-default', '-o', 'json');
  expect(JSON.parse(out)).toMatchObject([{ name: 'ci', namespace }]);
  const { code, err } = await command.run(['vm', 'list'], { environment: { CI_NAMESPACE: 'ci-elsewhere' } });
  expect([code, err]).toEqual([3, expect.stringContaining('in the namespace "platform-elsewhere"')]);
  expect(await berthAsAdmin('namespace', 'create', 'ci-made')).toMatchObject({
    code: 0,
    out: 'Successfully created namespace platform-made\n',
  });
  expect((await berthAsAdmin('ns', 'list', 'ci-made', '-o', 'name')).out).toBe('platform-made\n');
  // The target is right, so the command refuses the host.
  const given = await berthAsAdmin('node', 'namespace', 'nosuch', 'ci-made');
  expect([given.code, given.err]).toEqual([4, expect.stringContaining('node "nosuch" not found')]);
});

it('a deployment that can never succeed ends at once with the reason', async () => {
  const wrongHost = await berthAsAdmin('vm', 'deploy', 'lost', '--image', 'a', '--node', 'nosuch');
  expect(wrongHost).toEqual({
    code: 4,
    out: '',
    err: `error: node "nosuch" not found in namespace ${namespace}. Its hosts are bare, host-0\n`,
  });
  expect((await berth('vm', 'deploy', 'arm', '--config', 'ci', '--node', 'host-0')).code).toBe(0);
  const { code, err } = await berth('emulator', 'deploy', 'refused', '--vm', 'arm');
  expect([code, err]).toEqual([
    1,
    expect.stringMatching(
      /^error: Host host-0 has the architecture arm64\. .* Emulator refused was deleted\n$/,
    ),
  ]);
  expect((await berth('vm', 'delete', 'arm')).code).toBe(0);
});

it('a cluster without one of the kinds says so, and the others go on', async () => {
  await patchKind('emulators', { op: 'replace', path: '/spec/versions/0/served', value: false });
  await waitFor('the kind to be gone', async () => (await berth('emulator', 'list')).code !== 0);
  const calls = await Promise.all([
    berth('emulator', 'list', '-o', 'json'),
    berth('emulator', 'get', 'listed'),
    berth('emulator', 'delete', 'listed'),
    berth('emulator', 'deploy', 'new', '--vm', 'paired'),
  ]);
  const err = expect.stringMatching(
    /^error: The cluster does not have this kind\. Berth is not installed there, or its release is older than this command\n$/,
  );
  expect(calls).toEqual(calls.map(() => ({ code: 4, out: '', err })));
  const others = ['vm', 'vmconfig', 'image', 'iso'];
  const lists = await Promise.all(others.map((noun) => berth(noun, 'list')));
  expect(lists.map(({ code, out }) => [code, out])).toEqual(
    others.map(() => [0, expect.stringMatching(/^NAME /)]),
  );
});

it('a cluster without one of the fields says so, and makes nothing', async () => {
  const schema = '/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties';
  await patchKind('vmconfigs', { op: 'remove', path: `${schema}/displayDPI` });
  let name = '';
  const refused = await waitFor('the field to be gone', async () => {
    name = `dotted-${Date.now()}`;
    const result = await berth('vmconfig', 'create', name, '--image', 'a', '--display-dpi', '96');
    return result.code === 0 ? undefined : result;
  });
  expect(refused).toEqual({
    code: 1,
    out: '',
    err: expect.stringMatching(/^error: --display-dpi: the cluster does not have this field, .*\n$/),
  });
  expect((await berth('vmconfig', 'get', name)).code).toBe(4);
});

async function patchKind(plural: string, patch: object): Promise<void> {
  const crd = ['patch', 'crd', `${plural}.berth.dev`, '--type=json', '-p', JSON.stringify([patch])];
  await cluster.kubectl(crd);
}

/** Returns what the command wrote to a stream as a fixture has it. Its header says what is replaced. */
function shown(written: string, mark: string): string {
  const same = written
    .replaceAll(command.settings, 'SETTINGS')
    .replaceAll(cluster.directory, 'FOLDER')
    .replaceAll(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, 'TIME')
    .replaceAll(/\b(runner|node)-[a-z0-9]{5}\b/g, '$1-XXXXX')
    .replaceAll(/ \d+[smhd]$/gm, ' AGE');
  const lines = same.split('\n');
  const last = lines.pop();
  return [...lines.map((line) => `${mark}${line}\n`), last === '' ? '' : `${mark}${last}\\\n`].join('');
}
