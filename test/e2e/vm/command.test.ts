/** The day of a person with the command `berth`: a real terminal, sign-in, the ssh of this machine, a real guest and a registry. */
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { VM_CONFIGS, VM_POOLS } from '../../../api/v1alpha1/resources.ts';
import type { VMConfig } from '../../../api/v1alpha1/vmconfig.ts';
import type { VMPool } from '../../../api/v1alpha1/vmpool.ts';
import { run } from '../../../base/exec.ts';
import { authenticationConfiguration } from '../../../hack/authentication.ts';
import type { ServerProcess } from '../../../hack/cluster/program.ts';
import { makeKey } from '../../../hack/login.ts';
import { waitFor } from '../../../hack/wait.ts';
import {
  BUILDKITE_OUTPUT,
  BUILDKITE_SCRIPT,
  buildkiteEnvironment,
  gitlabCall,
  SHELL_JOB,
} from '../../fixtures/ciexamples.ts';
import { BerthCommand, type CommandResult } from '../../wires/berth.ts';
import { startRegistry, type TestRegistry } from '../../wires/registry.ts';
import { StartedProgram } from '../../wires/startedprogram.ts';
import { TestTerminal } from '../../wires/terminal.ts';
import { CLIENT, IdentityProvider } from '../../worlds/provider.ts';
import { visitPages } from '../../worlds/signin.ts';
import { SET_UP_MILLISECONDS, World } from '../../worlds/vm.ts';

const TEST_MILLISECONDS = 300_000;
/** Time limit of a program that only reads or writes small files. */
const LOCAL_MILLISECONDS = 60_000;
/** What a command reads in its VM. */
const INPUT_BYTES = 1024 * 1024;
/** Exit code of ssh itself. */
const SSH_REFUSES = 255;
/** Prompt of the guest. */
const GUEST_ASKS = /^[~/] #$/m;
/** Words of a command in the guest, and what it prints. */
const WHERE = 'cat /etc/os-release';
const GUEST = 'PRETTY_NAME="Berth guest"';

let folder: string;
let provider: IdentityProvider;
let registry: TestRegistry;
let world: World;
let server: ServerProcess;
let keys: StartedProgram;
let command: BerthCommand;
let environment: NodeJS.ProcessEnv & Record<'SSH_AUTH_SOCK', string>;
let terminal: TestTerminal;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-person-'));
  provider = await IdentityProvider.start({ dev: { groups: ['devs'] } });
  registry = await startRegistry({ directory: join(folder, 'registry'), password: false });
  world = await startWorld();
  const { issuer, authority } = provider;
  server = await world.cluster.startServer({ config: { cluster: { issuer, clientID: CLIENT } } });
  await writeFile(join(folder, 'authorities.pem'), `${authority}\n${server.authority}`);
  const key = join(folder, 'key');
  await makeConfig(await makeKey(key));
  command = await BerthCommand.make(join(folder, 'kubeconfig'));
  // The folder with the keys of a person cannot be another one, so the keys come from an agent.
  const socket = join(folder, 'agent');
  keys = new StartedProgram('ssh-agent', ['-D', '-a', socket]);
  await keys.prints(/SSH_AUTH_SOCK/);
  environment = { ...command.installed(), SSH_AUTH_SOCK: socket };
  await run('ssh-add', ['-q', key], { environment, timeoutMilliseconds: LOCAL_MILLISECONDS });
  terminal = await TestTerminal.open({ environment });
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await terminal?.[Symbol.asyncDispose]();
  keys?.kill();
  await command?.[Symbol.asyncDispose]();
  await server?.process.stop();
  await world?.[Symbol.asyncDispose]();
  await registry?.close();
  await provider?.close();
  await rm(folder, { recursive: true, force: true });
});

/** Starts a world whose developers are the members of a group of the provider. */
async function startWorld(): Promise<World> {
  const { issuer, authority } = provider;
  const { host, caFile } = registry;
  const configuration = authenticationConfiguration({ issuer, authority, client: CLIENT, hardened: true });
  const started = await World.start({
    name: 'vm-command',
    architecture: 'amd64',
    hosts: { host: '127.0.0.1' },
    authentication: stringify(configuration),
    images: { allowLoopbackHttp: true, registries: [{ host, caFile }] },
    operatorConfig: { imageStorage: { registry: { prefix: `${host}/storage` } } },
  });
  const binding = ['rolebinding', 'devs', '--clusterrole=berth-role-dev', '--group=oidc:devs'];
  await started.cluster.kubectl(['create', '-n', started.vms.namespace, ...binding]);
  return started;
}

async function makeConfig(publicKey: string): Promise<void> {
  const { namespace } = world.vms;
  await world.cluster.client().create<VMConfig>(VM_CONFIGS, {
    metadata: { name: 'small', namespace },
    spec: {
      image: 'guest',
      cpu: 1,
      memory: '256Mi',
      sshAuthorizedKeys: [publicKey],
    },
  });
}

async function berth(...args: string[]): Promise<CommandResult> {
  const { SSH_AUTH_SOCK } = environment;
  return await command.run(['vm', ...args], { environment: { SSH_AUTH_SOCK } });
}

/** Enters the line, and expects that it succeeds. Returns what it has shown. */
async function enter(line: string): Promise<string> {
  const { code, shown } = await terminal.enter(line);
  expect([code, shown]).toEqual([0, shown]);
  return shown;
}

/** Deploys the VM and waits for its SSH server. Returns its UID. */
async function deploy(): Promise<string> {
  expect(await enter('berth vm deploy desk --config small')).toMatch(/^desk +Running .* host /m);
  expect(await enter('berth vm wait desk --for ready')).toBe('vm desk is ready');
  return (await world.vms.get('desk')).metadata.uid ?? '';
}

/** Returns type and text of the host key that ssh knows of the VM with this UID. */
async function knownKey(uid: string): Promise<string> {
  const found = await run('ssh-keygen', ['-F', uid, '-f', command.knownHosts], {
    timeoutMilliseconds: LOCAL_MILLISECONDS,
  });
  const [, key = ''] = /^[^#\s]\S* (\S+ \S+)$/m.exec(found) ?? [];
  return key;
}

let uid: string;

test('the help has the nouns, and that of a noun its verbs', async () => {
  expect(await enter('berth --help')).toMatch(/^ {2}vm +Virtual machines$/m);
  const verbs = await enter('berth vm --help');
  for (const verb of ['deploy', 'ssh', 'console', 'save', 'push', 'why', 'delete']) {
    expect(verbs).toMatch(new RegExp(`^ {2}${verb} .* [A-Z]`, 'm'));
  }
});

test('a person signs in with a code', async () => {
  const authorities = join(folder, 'authorities.pem');
  await terminal.clear();
  await terminal.type(
    `berth login --device --api-url ${server.url} --certificate-authority ${authorities}\n`,
  );
  const [address] = await terminal.shows(/https:\S+user_code=\S+/);
  await visitPages(provider, address, { account: 'dev' });
  const { code, shown } = await terminal.answer();
  expect([code, shown]).toEqual([0, expect.stringContaining('Signed in as dev@berth.test')]);
  expect(await enter('berth vm list')).toBe('There are no VMs in namespace platform-default');
});

test(
  'ssh runs a command with its exit code, and knows the VM by its UID',
  async () => {
    uid = await deploy();
    const first = await berth('ssh', 'desk', '--', `${WHERE}; exit 7`);
    expect([first.code, first.out, first.err]).toEqual([7, `${GUEST}\n`, expect.stringContaining(uid)]);
    expect(await berth('ssh', 'desk', '--', `${WHERE} >&2`)).toEqual({
      code: 0,
      out: '',
      err: `${GUEST}\n`,
    });
    expect(await knownKey(uid)).toMatch(/^(ssh|ecdsa)-\S+ \S+$/);
  },
  TEST_MILLISECONDS,
);

/** Returns the names of the VMs that begin with the text, or of those that `vm run` has made. */
async function runVMs(start = 'run-'): Promise<string[]> {
  return (await world.vms.list())
    .map(({ metadata }) => metadata.name)
    .filter((name) => name.startsWith(start));
}

const RUN = ['run', '--config', 'small'] as const;

test(
  'run gives a command its files, environment and input, and has its outputs and its exit code; no VM is left',
  async () => {
    await world.kubectl('create', 'secret', 'generic', 'job', `--from-literal=WORD=it's "secret" \\`);
    await mkdir(join(folder, 'in'));
    await writeFile(join(folder, 'in', 'word'), 'copied');
    const script =
      'wc -c; echo "$WORD"; cat /root/in/word; echo told >&2; mkdir /root/out; echo "$2" > /root/out/result; exit 3';
    const copies = [
      '--copy',
      `${join(folder, 'in')}:/root/in`,
      '--copy-out',
      `/root/out:${join(folder, 'out')}`,
    ];
    const command3 = ['sh', '-c', script, 'sh', 'one', "two  $HOME 'x'"];
    const signals = `sh -c 'kill -INT $$'; echo $?; kill -TERM $$`;
    const agent = await buildkiteEnvironment(folder, environment);
    const [job, ended, done, bootstrap] = await Promise.all([
      command.run(['vm', ...RUN, '--env-secret', 'job', ...copies, '--', ...command3], {
        input: 'x'.repeat(INPUT_BYTES),
        // The role of a developer does not let people read Secrets.
        kubeconfig: world.cluster.kubeconfig,
      }),
      berth(...RUN, '--', 'sh', '-c', signals),
      berth(...RUN, '--', 'true'),
      new StartedProgram(BUILDKITE_SCRIPT, [], agent).result(),
    ]);
    expect(job).toEqual({ code: 3, out: `${INPUT_BYTES}\nit's "secret" \\\ncopied`, err: 'told\n' });
    expect(await readFile(join(folder, 'out', 'result'), 'utf8')).toBe("two  $HOME 'x'\n");
    expect([ended.code, ended.out]).toEqual([143, '130\n']);
    expect(done).toEqual({ code: 0, out: '', err: '' });
    expect(bootstrap).toEqual({ code: 3, stdout: BUILDKITE_OUTPUT, stderr: '' });
    await waitFor('no VM to be left', async () => (await runVMs()).length === 0);
  },
  TEST_MILLISECONDS,
);

test(
  'run deletes its VM when a signal ends it; when it is killed, the operator does so, and no private key is left',
  async () => {
    const begun = ['sh', '-c', 'echo begun; sleep 600'];
    const ended = command.start(['vm', ...RUN, '--', ...begun]);
    const left = join(folder, 'left');
    await mkdir(left);
    const killed = command.start(['vm', ...RUN, '--life', '20s', '--', ...begun], {
      environment: { TMPDIR: left },
    });
    for (const [name, text] of [
      ['one', 'echo one >word'],
      ['two', 'cat word; echo begun; sleep 600'],
    ] as const) {
      await writeFile(join(folder, name), text);
    }
    const script = new StartedProgram(
      SHELL_JOB,
      ['small', join(folder, 'one'), join(folder, 'two')],
      environment,
    );
    const begins = (program: StartedProgram) => program.prints(/^begun$/m, TEST_MILLISECONDS / 2);
    await Promise.all([begins(ended), begins(killed), begins(script)]);
    killed.kill();
    expect((await readdir(left, { recursive: true })).filter((name) => name.endsWith('key'))).toEqual([]);
    ended.interrupt('SIGHUP');
    script.interrupt('SIGTERM');
    expect(await ended.ended()).toMatchObject({ code: 129, stderr: 'error: Interrupted\n' });
    expect(await script.ended()).toMatchObject({ code: 143, stdout: 'one\nbegun\n' });
    await waitFor('the VM of the script to be deleted', async () => (await runVMs('job-')).length === 0);
    await waitFor('one VM to be deleted', async () => (await runVMs()).length === 1);
    const [name = ''] = await runVMs();
    await world.vms.waitUntilGone(name);
    await waitFor('the Event', async () =>
      /NotRenewed\s+vm\/run-/.test(await world.kubectl('get', 'events')),
    );
  },
  TEST_MILLISECONDS,
);

test(
  'run takes a ready VM of a pool with a key of its own, or resumes one with a key of the template; the pool makes another',
  async () => {
    const { namespace } = world.vms;
    for (const [name, powerState] of [
      ['jobs', 'Running'],
      ['naps', 'Suspended'],
    ] as const) {
      const template = { spec: { configRef: { name: 'small' }, powerState } };
      const spec = { replicas: 1, template };
      await world.cluster.client().create<VMPool>(VM_POOLS, { metadata: { name, namespace }, spec });
    }
    await world.kubectl('wait', '--for=condition=Ready', 'vmpool/jobs', 'vmpool/naps', '--timeout=120s');
    const [ready = '', asleep = ''] = [...(await runVMs('jobs-')), ...(await runVMs('naps-'))];
    expect((await world.vms.get(asleep)).status?.phase).toBe('Suspended');
    expect(await berth('ssh', ready, '--', 'guest-agent')).toMatchObject({ code: 0 });
    const claimed = await berth('run', '--pool', 'jobs', '--', 'sh', '-c', 'cat; exit 4');
    expect(claimed).toEqual({ code: 4, out: '', err: '' });
    const identity = ['--identity', join(folder, 'key')];
    const resumed = await berth('run', '--pool', 'naps', ...identity, '--', 'sh', '-c', 'echo job; exit 5');
    expect(resumed).toEqual({ code: 5, out: 'job\n', err: '' });
    await world.vms.waitUntilGone(ready);
    await world.vms.waitUntilGone(asleep);
    await waitFor('the Event', async () =>
      new RegExp(`Resumed\\s+vm/${asleep}`).test(await world.kubectl('get', 'events')),
    );
    await waitFor('another VM', async () => (await runVMs('jobs-')).some((name) => name !== ready));
    await world.kubectl('delete', 'vmpool', 'jobs', 'naps');
    await waitFor(
      'no VM of a pool to be left',
      async () => [...(await runVMs('jobs-')), ...(await runVMs('naps-'))].length === 0,
    );
  },
  TEST_MILLISECONDS,
);

test(
  'gitlab runs the scripts of a job in a VM with their exit codes, and cleans up also without a VM',
  async () => {
    const job = join(folder, 'job');
    await mkdir(job);
    const code = join(job, 'code');
    const script = async (text: string) => {
      await writeFile(join(job, 'script'), text);
      return join(job, 'script');
    };
    // The runner gives these variables to each program, and those of job_env to all but the first.
    const variables = {
      TMPDIR: job,
      CUSTOM_ENV_CI_JOB_ID: '4711',
      BUILD_EXIT_CODE_FILE: code,
      SECRET: 'of the runner',
    };
    const config = await command.run(await gitlabCall('config'), { environment: variables });
    expect(JSON.parse(config.out)).toMatchObject({ builds_dir: '/tmp/builds' });
    const { job_env } = JSON.parse(config.out) as { job_env: Record<string, string> };
    const stage = async (name: Parameters<typeof gitlabCall>[0], ...args: string[]) =>
      await command.run([...(await gitlabCall(name)), ...args], {
        environment: { ...variables, ...job_env },
      });
    expect(await stage('cleanup')).toMatchObject({ code: 0 });
    const prepared = await stage('prepare');
    expect([prepared.code, prepared.err]).toEqual([
      0,
      expect.stringContaining('The guest has no gitlab-runner'),
    ]);
    const { BERTH_GITLAB_VM: name = '' } = job_env;
    expect((await world.vms.get(name)).spec.aliveUntil).toBeDefined();
    const good = await script(
      'set -e\necho "$0 ${SECRET-hidden} ${CUSTOM_ENV_CI_JOB_ID-hidden}"\necho told >&2\n',
    );
    expect(await stage('run', good, 'prepare_script')).toEqual({
      code: 0,
      out: expect.stringContaining('hidden hidden\n'),
      err: 'told\n',
    });
    expect(await stage('run', await script('exit 42\n'), 'build_script')).toEqual({
      code: 1,
      out: '',
      err: '',
    });
    expect(await readFile(code, 'utf8')).toBe('42');
    expect(await stage('cleanup')).toMatchObject({ code: 0 });
    await world.vms.waitUntilGone(name);
    expect(await stage('run', good, 'after_script')).toMatchObject({ code: 2 });
  },
  TEST_MILLISECONDS,
);

test(
  'ssh gives the guest the terminal of the user, with its size',
  async () => {
    await terminal.type('berth vm ssh desk\n');
    await terminal.shows(GUEST_ASKS);
    await terminal.type('stty size\n');
    await terminal.shows(/^40 160$/m);
    await terminal.resize(120, 33);
    await waitFor('the guest to have the new size', async () => {
      await terminal.type('stty size\n');
      return /^33 120$/m.test(await terminal.shown());
    });
    await terminal.type('exit 3\n');
    expect(await terminal.answer()).toMatchObject({ code: 3 });
  },
  TEST_MILLISECONDS,
);

test(
  'exec keeps the exit code, and leaves the terminal as it was when the guest agent refuses one',
  async () => {
    expect(await berth('ssh', 'desk', '--', 'guest-agent')).toMatchObject({ code: 0 });
    const { shown: before } = await terminal.enter('stty -g');
    expect(await terminal.enter(`berth vm exec desk -- sh -c "${WHERE}; exit 5"`)).toEqual({
      code: 5,
      shown: GUEST,
    });
    expect(await terminal.enter('berth vm exec -t desk -- sh')).toEqual({
      code: 1,
      shown: expect.stringMatching(/^error: A guest agent has no terminals/),
    });
    expect(await terminal.enter('stty -g')).toEqual({ code: 0, shown: before });
  },
  TEST_MILLISECONDS,
);

test(
  'ssh-key add lets another key log in, and a key that is there already is not added again',
  async () => {
    const other = join(folder, 'other');
    await makeKey(other);
    const logIn = async () =>
      await command.run(['vm', 'ssh', '-i', other, 'desk', '--', 'wc -l <~/.ssh/authorized_keys'], {
        environment: { SSH_AUTH_SOCK: '' },
      });
    expect(await logIn()).toMatchObject({ code: SSH_REFUSES, out: '' });
    for (const key of [`${other}.pub`, `"$(cat ${other}.pub)"`]) {
      const added = await enter(`berth vm ssh-key add desk ${key}`);
      expect(added).toBe('Added a key for user root to vm desk');
      expect(await logIn()).toMatchObject({ code: 0, out: '2\n' });
    }
    expect(await berth('ssh-key', 'add', 'desk', `${other}.pub`, '-u', 'nobody-here')).toMatchObject({
      code: 1,
      err: expect.stringContaining('nobody-here'),
    });
  },
  TEST_MILLISECONDS,
);

test(
  'console is the terminal of the guest until Ctrl+]',
  async () => {
    const { shown: before } = await terminal.enter('stty -g');
    await terminal.type('berth vm console desk\n');
    await terminal.shows(/Press Ctrl\+] to leave/);
    await terminal.press('Enter');
    await terminal.shows(GUEST_ASKS);
    await terminal.type('stty -isig -icanon; echo begun; dd bs=1 count=1 2>/dev/null | od -c\n');
    await terminal.shows(/^begun$/m);
    await terminal.press('C-c');
    await terminal.shows(/ 003$/m);
    await terminal.press('C-]');
    expect(await terminal.answer()).toMatchObject({
      code: 0,
      shown: expect.stringContaining('Left the console of VM desk'),
    });
    expect(await terminal.enter('stty -g')).toEqual({ code: 0, shown: before });
  },
  TEST_MILLISECONDS,
);

test(
  'save and push keep the disk as an image and in a registry',
  async () => {
    expect(await enter('berth vm save desk tools')).toContain('Successfully finished save of image tools');
    expect(await enter('berth image list')).toMatch(/^tools .* Ready /m);
    const reference = `${registry.host}/team/tools:1`;
    expect(await enter(`berth vm push desk ${reference}`)).toContain(`to ${reference}`);
    expect(await registry.skopeo('list-tags', `docker://${registry.host}/team/tools`)).toContain('"1"');
  },
  TEST_MILLISECONDS,
);

test(
  'logs follow the console, and end with the machine when the VM is deleted with time for its guest',
  async () => {
    const spec = { terminationGracePeriodSeconds: 30 };
    await world.kubectl('patch', 'vm', 'desk', '--type=merge', '-p', JSON.stringify({ spec }));
    await terminal.clear();
    await terminal.type('berth vm logs -f desk\n');
    await terminal.shows(/^berth-guest: ready$/m);
    expect(await berth('delete', 'desk')).toEqual({
      code: 0,
      out: 'Successfully deleted vm desk\n',
      err: '',
    });
    expect(await terminal.answer()).toMatchObject({
      code: 0,
      shown: expect.stringMatching(/berth-guest: (power button|shutdown by the guest agent)$/m),
    });
  },
  TEST_MILLISECONDS,
);

test(
  'a new VM of the same name neither alarms nor is trusted by the key of the old one',
  async () => {
    expect(await enter('berth vm list')).toBe('There are no VMs in namespace platform-default');
    const next = await deploy();
    const first = await berth('ssh', 'desk', '--', WHERE);
    expect([first.code, first.out]).toEqual([0, `${GUEST}\n`]);
    expect(first.err).toMatch(new RegExp(`^Warning: Permanently added '${next}' .*\\r?\\n$`));
    const old = await knownKey(uid);
    expect(await knownKey(next)).not.toBe(old);
    const known = await readFile(command.knownHosts, 'utf8');
    await writeFile(command.knownHosts, `${next} ${old}\n`);
    expect(await berth('ssh', 'desk', '--', WHERE)).toEqual({
      code: SSH_REFUSES,
      out: '',
      err: expect.stringContaining('REMOTE HOST IDENTIFICATION HAS CHANGED'),
    });
    await writeFile(command.knownHosts, known);
  },
  TEST_MILLISECONDS,
);

test('logout ends the session', async () => {
  expect(await enter('berth logout')).toContain('Signed out');
  expect(await terminal.enter('berth vm list')).toEqual({
    code: 2,
    shown: expect.stringContaining('there is no current context. Sign in with berth login'),
  });
});
