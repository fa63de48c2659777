import { once } from 'node:events';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import type { Command } from 'commander';
import { expect, it, onTestFinished, vi } from 'vitest';
import { EXIT } from './errors.ts';
import { createProgram, run } from './program.ts';
import { makeTerminal } from '../test/fixtures/terminals.ts';
import { makeFolder } from '../test/support/folder.ts';
import { writeContext } from '../test/fixtures/kubeconfig.ts';

const KEY = `ssh-ed25519 AAAAC3NzaC1lZDI1NTE5${'A'.repeat(48)}`;

/** Runs the command without a cluster. Returns its exit code and both streams. */
async function berth(...args: string[]) {
  return await runAs('berth', args);
}

/** Runs the command under a name. */
async function runAs(
  name: string,
  args: readonly string[],
  environment: NodeJS.ProcessEnv = { KUBECONFIG: '/nonexistent/config' },
) {
  let out = '';
  let err = '';
  const terminal = makeTerminal({
    name,
    environment,
    out: (text) => void (out += text),
    err: (text) => void (err += text),
  });
  const code = await run(args, terminal);
  return { code, out, err };
}

/** Returns the path of each command, such as `vm deploy`. */
function pathsOf(command: Command): string[][] {
  return [[], ...command.commands.flatMap((next) => pathsOf(next).map((path) => [next.name(), ...path]))];
}

/** Reports whether the example leaves out an argument or a flag that its command requires. */
function missingArguments(program: Command, path: readonly string[], example: string): boolean {
  const command = path.reduce<Command | undefined>(
    (at, name) => at?.commands.find((next) => next.name() === name),
    program,
  );
  const given = example.split(' ').slice(path.length);
  const needed = command?.registeredArguments.filter(({ required }) => required).length ?? 0;
  const flags = command?.options.filter(({ mandatory }) => mandatory) ?? [];
  return given.length < needed || flags.some(({ long }) => !given.includes(long ?? ''));
}

it('shows the help of each command, with the flags that all commands have', async () => {
  const program = await createProgram(makeTerminal(), () => true);
  const paths = pathsOf(program);
  expect(paths).toContainEqual(['vm', 'deploy']);
  for (const path of paths) {
    const help = await berth(...path, '--help');
    expect([path, help.code, help.err]).toEqual([path, EXIT.done, '']);
    expect(help.out).toContain(`Usage: ${['berth', ...path].join(' ')}`);
    const isVerb = paths.every(
      (other) => other.length <= path.length || path.some((word, at) => word !== other[at]),
    );
    const [, example = ''] = /\nExample:\n {2}berth (.*)\n$/.exec(help.out) ?? [];
    if (isVerb) {
      expect([path, example.startsWith(path.join(' '))]).toEqual([path, true]);
      expect([path, missingArguments(program, path, example)]).toEqual([path, false]);
    }
    for (const flag of [
      '--namespace <name>',
      '--context <name>',
      '--kubeconfig <file>',
      '--output <format>',
    ]) {
      expect(help.out).toContain(flag);
    }
  }
  const { code, out, err } = await berth('vm', 'deploy', '--help');
  expect([code, err]).toEqual([EXIT.done, '']);
  for (const part of [
    'Usage: berth vm deploy',
    '--display-width <pixels>',
    '--generate-name ',
    '--active-deadline-seconds <seconds>',
    '--ttl-seconds-after-finished <seconds>',
    '--namespace <name>',
  ]) {
    expect(out).toContain(part);
  }
});

it.each([
  [['vm', 'lst'], "unknown command 'lst'\n(Did you mean one of list, ls?)"],
  [['vmm'], "unknown command 'vmm'\n(Did you mean vm?)"],
  [['vm', 'list', '--namspace', 'a'], '(Did you mean --namespace?)'],
  [['vm', 'list', '-o', 'xml'], 'Allowed choices are table, wide, json, yaml, name.'],
  [['vm', 'list', '-o', 'jsonpath={.name}'], 'Allowed choices are table, wide, json, yaml, name.'],
  [['vm', 'deploy', '--image', 'a', '--tag-required', 'yes'], "'--tag-required' argument 'yes' is invalid"],
  [['vm', 'deploy', '--image', 'a', '--tag-required=1'], "'--tag-required' argument '1' is invalid"],
  [['vm', 'exec', '-i', 'yes', 'mac', '--', 'date'], "'-i, --stdin' argument 'yes' is invalid"],
  [['vm', 'exec', 'mac', '-t=no', '--', 'date'], "'-t, --tty' argument 'no' is invalid"],
  [['vm', 'logs', 'mac', '-f', 'yes'], "'-f, --follow' argument 'yes' is invalid. It must be true or false"],
  [['vm', 'console', 'mac', '--stdin=1'], "'-i, --stdin' argument '1' is invalid"],
  [['vm', 'deploy', '--image', 'a', '--memory', '4X'], "'-m, --memory <size>' argument '4X' is invalid"],
  [['vm', 'deploy', '--image', 'a', '--cpu', 'two'], "argument 'two' is invalid. It must be a whole number"],
  [
    ['vm', 'deploy', 'mac', '--image', 'a', '--no-ssh-key', '--ssh-key', KEY],
    'only one of --ssh-key and --no-ssh-key',
  ],
  [['vm', 'deploy', 'mac'], '--image, --iso or --config'],
  [['vm', 'deploy', 'mac', '--image', 'a', '--timeout', '0'], '--timeout 0 must be from 1 to 1440 minutes'],
  [['vm', 'ssh-key', 'add', 'desk', ''], 'It must be a public SSH key, or a file of such keys'],
  [['vm', 'ssh-key', 'add', 'desk', '/nonexistent/key'], 'The file /nonexistent/key does not exist'],
  [['vm', 'delete'], 'Give one of these: names, --all or --selector'],
  [['vm', 'delete', '-l', ''], 'It must name labels'],
  [['vm', 'list', '-l', ' '], 'It must name labels'],
  [['vm', 'delete', 'a', '--all'], 'Give one of these: names, --all or --selector'],
  [['vm', 'list', 'a', '-A'], 'Give either names, or --selector and --all-namespaces'],
  [['nosuch', '--help'], "unknown command 'nosuch'"],
  [['help', 'nosuch'], "unknown command 'nosuch'"],
  [['vm', 'lst', '-h'], "unknown command 'lst'"],
  [['vmconfig', 'deploy'], "unknown command 'deploy'"],
  [['vm-config', 'lst'], 'Did you mean one of list, ls?'],
  [['user', 'set-token', 'a', '--api-url', 'http://berth.example'], 'It must be https://'],
  [['vm', 'list'], 'The file /nonexistent/config does not exist. Sign in with berth login'],
])('refuses %j with words that help', async (args, expected) => {
  const { code, out, err } = await berth(...args);
  expect([code, out]).toEqual([EXIT.usage, '']);
  expect(err).toContain(expected);
});

it('shows the help of a verb after the word help, and takes the short names of nouns', async () => {
  expect((await berth('help', 'vm', 'deploy')).out).toBe((await berth('vm', 'deploy', '--help')).out);
  for (const [short, noun] of Object.entries({
    vmc: 'vmconfig',
    sa: 'serviceaccount',
    regcred: 'registry',
  })) {
    expect((await berth(short, 'list', '--help')).out).toContain(`Usage: berth ${noun}`);
  }
  for (const [short, noun] of Object.entries({ rb: 'rolebinding', ic: 'imagecache', ns: 'namespace' })) {
    expect((await berth(short, 'list', '--help')).out).toContain(`Usage: berth ${noun}`);
  }
});

it('has the name under which it was started, in help, advice and completion', async () => {
  for (const name of ['ci-vms', 'kubectl berth']) {
    expect((await runAs(name, ['vm', '--help'])).out).toMatch(new RegExp(`^Usage: ${name} vm `));
    expect((await runAs(name, ['vm', 'list'])).err).toContain(`Sign in with ${name} login`);
  }
  expect((await runAs('ci-vms', ['completion', 'bash'])).out).toMatch(/^complete .* ci-vms$/m);
  // The script would replace the completion of kubectl.
  const { code, out, err } = await runAs('kubectl berth', ['completion', 'bash']);
  expect([code, out]).toEqual([EXIT.usage, '']);
  expect(err).toContain('for example: berth completion bash');
});

it('writes its version for people and for programs, also without a cluster', async () => {
  const shown = await Promise.all(
    ['table', 'json', 'yaml', 'name'].map((format) => berth('version', '-o', format)),
  );
  expect(shown.map(({ code, out }) => [code, out])).toEqual([
    [EXIT.done, 'COMPONENT   VERSION   HOSTS\nberth       0.1.0\n'],
    [EXIT.done, '[\n  {\n    "name": "berth",\n    "version": "0.1.0"\n  }\n]\n'],
    [EXIT.done, '- name: berth\n  version: 0.1.0\n'],
    [EXIT.done, 'berth\n'],
  ]);
  expect(shown.map(({ err }) => err)).toEqual([
    expect.stringMatching(/^The versions of the cluster are not known: The file .* does not exist/),
    '',
    '',
    '',
  ]);
});

/** Number of forms of the other platform that the command may refuse. */
const REFUSED_MAXIMUM = 10;
/** Time limit of all forms. Each takes a few hundredths of a second, and more on a busy machine. */
const FORMS_MILLISECONDS = 60_000;

it('accepts the forms of the command line of another platform, and says why it refuses a few', {
  timeout: FORMS_MILLISECONDS,
}, async () => {
  const user = await signedIn(await emptyCluster());
  const text = await readFile(join(import.meta.dirname, '../test/fixtures/commands/foreign.txt'), 'utf8');
  const forms = [...text.matchAll(/^\$ (.*)$/gm)].map(([, form = '']) => form);
  const answers: string[] = [];
  for (const form of forms) {
    vi.spyOn(process, 'stdin', 'get').mockReturnValue(Readable.from(['secret\n']) as typeof process.stdin);
    const { code, err } = await runAs('berth', form.split(' '), await user());
    answers.push(`$ ${form}\n${code === EXIT.usage ? err.replaceAll(/^(?=.)/gm, '2> ') : ''}`);
  }
  vi.restoreAllMocks();
  expect(text.slice(0, text.indexOf('$ ')) + answers.join('')).toBe(text);
  expect(answers.filter((answer) => answer.includes('\n2> ')).length).toBeLessThanOrEqual(REFUSED_MAXIMUM);
});

it('gives flags of another platform the meaning of its own, and says which have no effect', async () => {
  const bodies: unknown[] = [];
  const user = await signedIn(await emptyCluster(bodies));
  const create = 'vm create --name desk -i base --ports 9000:80,9001:81/udp --disable-vnc --legacy-io -y';
  const { err } = await runAs('berth', create.split(' '), await user());
  expect(bodies.at(-1)).toMatchObject({
    metadata: { name: 'desk' },
    spec: {
      image: 'base',
      vnc: { enabled: false },
      ports: ['9000:80', '9001:81/udp'],
    },
  });
  expect(err).toContain('warning: --legacy-io has no effect. The hosts choose the drivers');
  const { err: shown } = await runAs('berth', 'regcred add r.example -u a -p b'.split(' '), await user());
  expect(shown).toMatch(/^warning: other users of this computer can see the value of --password/);
});

const NOT_FOUND = '{"kind":"Status","status":"Failure","message":"none","reason":"NotFound","code":404}';

/** Starts an API server that knows its users and has nothing else, and returns its URL. `bodies` gets the bodies of its requests. */
async function emptyCluster(bodies: unknown[] = []): Promise<string> {
  const server = createServer((request, response) => {
    let body = '';
    request.on('data', (piece) => (body += String(piece)));
    request.on('end', () => {
      bodies.push(...(body === '' ? [] : [JSON.parse(body)]));
      const isReview = request.url?.endsWith('/selfsubjectreviews') === true;
      response.writeHead(isReview ? 201 : 404, { 'content-type': 'application/json' });
      response.end(isReview ? '{"status":{"userInfo":{"username":"ann"}}}' : NOT_FOUND);
    });
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/**
 * Returns a function for the environment of a user with a token for the server, and with the settings for scripts of the other platform. It
 * writes the files again, because commands change them.
 */
async function signedIn(server: string): Promise<() => Promise<NodeJS.ProcessEnv>> {
  const home = makeFolder();
  const settings = join(home, '.config/berth');
  await mkdir(settings, { recursive: true });
  return async () => {
    await writeFile(join(settings, 'config.yaml'), `{apiURL: ${server}, aliases: {namespacePrefix: ci-}}`);
    return { HOME: home, KUBECONFIG: await writeContext(home, server, { token: 'a' }) };
  };
}
