import { chmod, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import type { Dispatcher, Pool } from 'undici';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { CredentialError } from './errors.ts';
import { execPluginIn, tokenPlugin } from './execplugin.ts';
import { Transport } from './transport.ts';

const apiVersion = 'client.authentication.k8s.io/v1';
const CLUSTER = {
  server: 'https://cluster.example',
  'tls-server-name': undefined,
  'certificate-authority-data': undefined,
  config: undefined,
};
const HOUR_MILLISECONDS = 3_600_000;

let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-plugin-'));
});

afterAll(async () => await rm(folder, { recursive: true, force: true }));

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

/**
 * Makes a plug-in that runs the shell script, and returns its source of tokens. `$runs` is a file to which the plug-in adds a line at each
 * run.
 */
async function pluginOf(script: string, exec: object = {}) {
  const [name, runs] = [`./plugin${Math.random()}`, join(folder, `runs${Math.random()}`)];
  await writeFile(join(folder, name), `#!/bin/sh\necho >> ${runs}\n${script}\n`);
  await chmod(join(folder, name), 0o755);
  const source = tokenPlugin(
    execPluginIn({ apiVersion, command: name, args: ['one two', '$HOME'], ...exec }, folder),
    CLUSTER,
    process.env,
  );
  return { source, runs: async () => (await readFile(runs, 'utf8')).length };
}

function answer(token: string, milliseconds?: number): string {
  const expirationTimestamp =
    milliseconds === undefined ? undefined : new Date(Date.now() + milliseconds).toISOString();
  const status = { token, expirationTimestamp };
  return `echo '${JSON.stringify({ apiVersion, kind: 'ExecCredential', status })}'`;
}

describe('a plug-in', () => {
  it('may take longer than a request, because a person may have to sign in', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const dispatch: Dispatcher['dispatch'] = ({ headers }, handler) => {
      const answer = Buffer.from((headers as Record<string, string>)['authorization'] ?? '');
      const controller = { pause: () => undefined, resume: () => undefined } as Dispatcher.DispatchController;
      handler.onResponseStart?.(controller, 200, {});
      handler.onResponseData?.(controller, answer);
      handler.onResponseEnd?.(controller, {});
      return true;
    };
    let token: Promise<string> | undefined;
    const signIn = async () => {
      vi.advanceTimersByTime(token === undefined ? 60_000 : 0);
      token = Promise.resolve('mine');
      return await token;
    };
    const transport = new Transport(
      { server: CLUSTER.server, tokenPlugin: signIn },
      { metrics: new Registry(), pool: { dispatch } as Pool },
    );
    const { body } = await transport.request({ method: 'GET', path: '/' });
    expect(body).toBe('Bearer mine');
  });

  it.each(['null', '""'])('with the end %s gives a token without end', async (end) => {
    const { source } = await pluginOf(answer('a').replace('}}', `,"expirationTimestamp":${end}}}`));
    expect(await source()).toBe('a');
    expect(await source()).toBe('a');
  });

  it('gets its arguments without a shell, its variables, and the request', async () => {
    const values = `"$1|$2|$OWN|$KUBERNETES_EXEC_INFO"`;
    const script = `printf %s ${values} > ${folder}/values\n${answer('a')}`;
    const { source } = await pluginOf(script, { env: [{ name: 'OWN', value: 'mine' }] });
    expect(await source()).toBe('a');
    const [first, second, own, request] = (await readFile(join(folder, 'values'), 'utf8')).split('|');
    expect([first, second, own]).toEqual(['one two', '$HOME', 'mine']);
    expect(JSON.parse(request ?? '')).toEqual({
      apiVersion,
      kind: 'ExecCredential',
      spec: { interactive: false },
    });
  });

  it('runs once for calls at the same time, and again when its token expires or is refused', async () => {
    const lasting = await pluginOf(answer('a', HOUR_MILLISECONDS));
    await Promise.all([lasting.source(), lasting.source()]);
    await lasting.source();
    expect(await lasting.runs()).toBe(1);
    await lasting.source(true);
    expect(await lasting.runs()).toBe(2);
    const endless = await pluginOf(answer('a'));
    await endless.source();
    await endless.source();
    expect(await endless.runs()).toBe(1);
    const brief = await pluginOf(answer('a', 1000));
    await brief.source();
    await brief.source();
    expect(await brief.runs()).toBe(2);
  });

  it('that waits for a person shows what the person has to do, and a quick one shows nothing', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const shown: string[] = [];
    vi.spyOn(process.stderr, 'write').mockImplementation((text) => shown.push(String(text)) > 0);
    const quick = await pluginOf('echo "sign in again" >&2; exit 3');
    await expect(quick.source()).rejects.toThrow('sign in again');
    const signedIn = join(folder, 'signed-in');
    const waiting = `echo "enter the code 42" >&2; until [ -e ${signedIn} ]; do sleep 0.05; done`;
    const { source } = await pluginOf(`${waiting}\necho "welcome" >&2\n${answer('mine')}`);
    const token = source();
    await vi.waitFor(() => expect(shown.join('')).toBe('enter the code 42\n'), { timeout: 10_000 });
    await writeFile(signedIn, '');
    expect(await token).toBe('mine');
    expect(shown.join('')).toBe('enter the code 42\nwelcome\n');
  });

  it.each([
    ['a failure', 'echo "sign in again" >&2; exit 3', /plugin.* ended with code 3: sign in again$/],
    ['no JSON', 'echo secret-token', /wrote output that is not JSON$/],
    ['another kind', `echo '{"status":{"token":"secret-token"}}'`, /is not an ExecCredential of .*\/v1$/],
    ['no token', answer(''), /gave no token/],
    ['a token of two lines', answer('secret-token\\nx'), /gave no token/],
    [
      'a wrong time',
      answer('secret-token').replace('}}', ',"expirationTimestamp":"x"}}'),
      /is not a valid time$/,
    ],
    ['endless output', 'yes secret-token', /wrote more than 1048576 bytes$/],
  ])('with %s is an error without its token', async (_, script, expected) => {
    const { source } = await pluginOf(script);
    const error: Error = await source().then(
      () => new Error('no error'),
      (reason: Error) => reason,
    );
    expect(error).toBeInstanceOf(CredentialError);
    expect(error.message).toMatch(expected);
    expect(error.message).not.toContain('secret-token');
  });

  it('that is not installed is an error with the hint', async () => {
    const exec = { apiVersion, command: 'berth-absent', installHint: 'Install it from example' };
    const absent = tokenPlugin(execPluginIn(exec, folder), CLUSTER, {});
    await expect(absent()).rejects.toThrow(/berth-absent cannot be executed: .*\. Install it from example$/);
  });
});

it.each([
  [{ command: 'a' }, 'exec.apiVersion'],
  [{ apiVersion: 'client.authentication.k8s.io/v1alpha1', command: 'a' }, 'exec.apiVersion'],
  [{ apiVersion }, 'exec.command'],
  [{ apiVersion, command: 'a', args: 'b' }, 'exec.args must be a list'],
  [{ apiVersion, command: 'a', args: [1] }, 'exec.args must contain only texts'],
  [{ apiVersion, command: 'a', env: [{ name: 'A' }] }, 'exec.env must contain only texts'],
  [{ apiVersion, command: 'a', interactiveMode: 'Always' }, 'interactiveMode Always'],
])('%j is refused by its field', (exec, expected) => {
  expect(() => execPluginIn(exec, folder)).toThrow(expected);
});
