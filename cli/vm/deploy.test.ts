import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { pause } from '../../base/time.ts';
import { ApiError } from '../../kube/errors.ts';
import { EXIT, Interrupted } from '../errors.ts';
import { estimator } from '../progress.ts';
import { bodyOf, deploy, formatLine, inFlags, vmFrom } from './deploy.ts';
import { makeTerminal } from '../../test/fixtures/terminals.ts';

const METADATA = { name: 'mac', namespace: 'a', uid: '1', resourceVersion: '1' };
const CREATED = { metadata: METADATA, spec: {} };
const RUNNING = { metadata: { ...METADATA, resourceVersion: '2' }, spec: {}, status: { phase: 'Running' } };

let folder: string;
let server: Server | undefined;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-deploy-'));
});

afterEach(async () => {
  server?.closeAllConnections();
  server?.close();
  await rm(folder, { recursive: true });
});

type Answer = (status: number, body: object) => void;

interface Behaviour {
  /** Answers the requests that keep the VM. */
  readonly keep?: (answer: Answer, socket: IncomingMessage['socket']) => void;
  /** Versions of the VM in the watch. */
  readonly version?: object | object[];
  /** Spec of the VM config `ci`. */
  readonly config?: object;
  /** Spec of the Image. */
  readonly image?: object;
  readonly flags?: object;
  readonly output?: 'table' | 'json';
  /** Called when the API server has received the request that creates the VM, and before it answers. */
  readonly onCreate?: (interrupt: AbortController) => Promise<void>;
}

/** Deploys a VM at an API server whose VM runs at once. `calls` receives the methods of all requests. */
async function deployed(
  { keep = (answer) => answer(200, RUNNING), version = RUNNING, onCreate, ...asked }: Behaviour,
  calls: string[] = [],
) {
  const { config, image = {}, flags = {}, output } = asked;
  let sent: Partial<VM> = {};
  const interrupt = new AbortController();
  const created = async (answer: Answer) => {
    await onCreate?.(interrupt);
    answer(200, CREATED);
  };
  server = createServer((request: IncomingMessage, response: ServerResponse) => {
    const { method = '', url = '' } = request;
    calls.push(method);
    const answer: Answer = (status, body) =>
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    if (method === 'PATCH') {
      keep(answer, request.socket);
    } else if (url.includes('/vmconfigs/')) {
      answer(200, { metadata: { name: 'ci' }, spec: config });
    } else if (url.includes('/images/')) {
      answer(200, { metadata: { name: 'linux' }, spec: image });
    } else if (method === 'GET') {
      response.writeHead(200, { 'content-type': 'application/json' });
      for (const object of [version].flat()) {
        response.write(`${JSON.stringify({ type: 'MODIFIED', object })}\n`);
      }
    } else if (method === 'POST' && !url.includes('selfsubjectreviews')) {
      void json(request).then((vm) => {
        sent = vm as Partial<VM>;
        return created(answer);
      });
    } else {
      answer(200, { status: {} });
    }
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  const kubeconfig = join(folder, 'kubeconfig');
  const document = {
    clusters: [{ name: 'a', cluster: { server: `http://127.0.0.1:${port}` } }],
    contexts: [{ name: 'a', context: { cluster: 'a', user: 'a', namespace: 'a' } }],
    users: [{ name: 'a', user: { token: 'a' } }],
  };
  await writeFile(kubeconfig, JSON.stringify(document));
  const out = vi.fn<(text: string) => void>();
  const signal = AbortSignal.any([interrupt.signal, AbortSignal.timeout(30_000)]);
  const terminal = makeTerminal({ environment: { HOME: folder }, out, err: out, signal });
  const globals = { kubeconfig, context: 'a', output: output ?? 'name' } as const;
  await deploy(terminal, globals, { name: 'mac', flags: { image: 'linux', ...flags } });
  return { calls, out, spec: sent.spec ?? {} };
}

it('keeps the VM although the API server is restarted when the VM runs', async () => {
  let attempts = 0;
  const { calls, out } = await deployed({
    keep: (answer, socket) => {
      attempts += 1;
      if (attempts === 1) {
        socket.destroy();
      } else if (attempts === 2) {
        answer(403, {
          message: 'vms.berth.dev "mac" is forbidden: User "ci" cannot patch',
          reason: 'Forbidden',
        });
      } else {
        answer(200, RUNNING);
      }
    },
  });
  expect(attempts).toBe(3);
  expect(calls).not.toContain('DELETE');
  expect(out).toHaveBeenCalledWith('mac\n');
});

it('fails if somebody has deleted the VM before the command keeps it', async () => {
  const metadata = { ...RUNNING.metadata, deletionTimestamp: '2026-11-27T12:00:00Z' };
  const kept = deployed({ keep: (answer) => answer(200, { ...RUNNING, metadata }) });
  await expect(kept).rejects.toThrow('VM mac was deleted before it ran');
});

it('deletes the VM if the user interrupts the command while the API server creates the VM', async () => {
  const calls: string[] = [];
  const onCreate = async (interrupt: AbortController) => {
    interrupt.abort(new Interrupted());
    // A command that does not wait for the answer ends in this time.
    await pause(100);
  };
  const interrupted = deployed({ onCreate }, calls);
  await expect(interrupted).rejects.toThrow('Interrupted. VM mac was deleted');
  expect(calls.at(-1)).toBe('DELETE');
});

it('ends with the code for a time limit if the operator was the first to notice that the time was over', async () => {
  const failure = { reason: 'DeployTimeout', message: 'The VM was not Running 600 s after', time: '' };
  const late = deployed({ version: { ...RUNNING, status: { phase: 'Failed', failure } } });
  await expect(late).rejects.toMatchObject({
    exitCode: EXIT.noAnswer,
    message: 'The VM was not Running 600 s after. VM mac was deleted',
  });
});

it('shows the part, the rate and the time that is left of a pull, and before it the words of the scheduler', () => {
  let now = 0;
  const estimate = estimator(() => now);
  const line = (status: object) =>
    formatLine({ metadata: { name: 'mac' }, spec: {}, status } as VM, estimate);
  const scheduled = {
    type: 'Scheduled',
    status: 'False',
    reason: 'Unschedulable',
    message: 'No host is free',
  };
  expect(line({ phase: 'Pending', conditions: [scheduled] })).toBe('mac: No host is free');
  const pulling = (progressPercent: number) =>
    line({ phase: 'Pulling', progressPercent, progress: `Pulling ${progressPercent} % (80 MB/s)` });
  expect(pulling(0)).toBe('mac: Pulling 0 % (80 MB/s)');
  now = 60_000;
  expect(pulling(50)).toBe('mac: Pulling 50 % (80 MB/s), 60 s left');
  expect(line({ phase: 'Starting' })).toBe('mac: Starting');
});

it('makes the VM of the flags', () => {
  const flags = {
    image: 'sonoma',
    cpu: 4,
    memory: '4G',
    diskSize: '20G',
    sshKey: ['ssh-ed25519 AAAA'],
    tag: 'fast',
    tagRequired: true,
    scheduler: 'most-allocated',
    reservePort: ['8080:80', '5353:53/udp'],
    displayDpi: 96,
    vnc: false,
    metadata: { items: '1' },
    timeout: 5,
    activeDeadlineSeconds: 3600,
    ttlSecondsAfterFinished: 0,
  } as const;
  const { metadata, spec } = vmFrom(bodyOf('mac', flags), flags, 'platform-a');
  expect(metadata).toMatchObject({ name: 'mac', namespace: 'platform-a' });
  expect(JSON.parse(JSON.stringify(spec))).toEqual({
    image: 'sonoma',
    cpu: 4,
    memory: '4G',
    diskSize: '20G',
    sshAuthorizedKeys: ['ssh-ed25519 AAAA'],
    placement: { tag: 'fast', tagPolicy: 'Required', strategy: 'MostAllocated' },
    ports: ['8080:80', '5353:53/udp'],
    displayDPI: 96,
    vnc: { enabled: false },
    guestMetadata: { items: '1' },
    deployTimeoutSeconds: 300,
    activeDeadlineSeconds: 3600,
    ttlSecondsAfterFinished: 0,
  });
});

it('refuses --tag-required without --tag, because it would have no effect', () => {
  expect(() => bodyOf('mac', { image: 'sonoma', tagRequired: true })).toThrow('--tag-required needs --tag');
  expect(bodyOf('mac', { image: 'sonoma', tagRequired: false })).toMatchObject({ tag: undefined });
});

it('names the flags of the fields that an older cluster does not have', () => {
  const message =
    'VM in version "v1alpha1" cannot be handled as a VM: strict decoding error: unknown field "spec.displayDPI", unknown field "spec.odd"';
  const expected =
    'the cluster does not have this field, because its release of Berth is older than this command';
  expect(inFlags(new ApiError(message, { status: 400, reason: 'BadRequest' }))).toMatchObject({
    message: `--display-dpi: ${expected}\nspec.odd: ${expected}`,
  });
  const other = new ApiError('the body is no JSON', { status: 400, reason: 'BadRequest' });
  expect(inFlags(other)).toBe(other);
});

it('names the flags of the fields that the API server refuses', () => {
  const causes = [
    {
      field: 'spec.displayWidth',
      message: 'Invalid value: 9: spec.displayWidth in body should be at least 320',
    },
    { field: 'spec.displayWidth', message: 'Invalid value: 9: must be from 320 to 3840' },
    { field: '<nil>', message: 'Invalid value: null: some validation rules were not checked' },
    { field: 'spec.cpu', message: 'Invalid value: 0: spec.cpu in body should be greater than or equal to 1' },
    {
      field: 'spec.memory',
      message: 'Invalid value: "1Mi": memory 1Mi is not allowed: it must be from 64Mi',
    },
    { field: 'spec.ports[0]', message: 'Invalid value: "x"' },
    { field: 'spec.activeDeadlineSeconds', message: 'Invalid value: 0: must be from 1' },
    { field: 'spec.ttlSecondsAfterFinished', message: 'Invalid value: -1: must be from 0' },
    { field: 'spec.vnc', message: 'is odd' },
  ];
  const error = new ApiError('VM is invalid', { status: 422, reason: 'Invalid', details: { causes } });
  expect(inFlags(error)).toMatchObject({
    message:
      '--display-width: 9 must be from 320 to 3840\n--cpu: 0 must be at least 1\n--memory: memory 1Mi is not allowed: it must be from 64Mi\n--reserve-port: Invalid value: "x"\n--active-deadline-seconds: 0 must be from 1\n--ttl-seconds-after-finished: -1 must be from 0\nspec.vnc: is odd',
  });
});

describe('the SSH keys of a deployment', () => {
  const OWN = `ssh-ed25519 AAAAC3NzaC1lZDI1NTE5${'A'.repeat(48)} me@desk`;

  beforeEach(async () => {
    await mkdir(join(folder, '.ssh'));
    await writeFile(join(folder, '.ssh', 'id_rsa.pub'), `${OWN}\n`);
    // A key that OpenSSH no longer reads stands before the others, and nobody asked for it.
    await writeFile(join(folder, '.ssh', 'id_ecdsa.pub'), '-----BEGIN PUBLIC KEY-----\n');
  });

  it('are the own one of the user, which the command says in one line to people, and not to programs', async () => {
    const { spec, out } = await deployed({ output: 'table' });
    expect(spec.sshAuthorizedKeys).toEqual([OWN]);
    const said = `The guest accepts your SSH key ${join(folder, '.ssh', 'id_rsa.pub')}. Without it: --no-ssh-key\n`;
    expect(out).toHaveBeenCalledWith(said);
    server?.close();
    const programs = await deployed({ output: 'json' });
    expect(programs.spec.sshAuthorizedKeys).toEqual([OWN]);
    expect(programs.out).not.toHaveBeenCalledWith(said);
  });

  it.each([
    ['the flags name others', { flags: { sshKey: ['ssh-rsa BBBB'] } }, ['ssh-rsa BBBB']],
    ['--no-ssh-key is given', { flags: { noSshKey: true } }, []],
    ['the VM boots from an ISO', { flags: { image: undefined, iso: 'debian' } }, undefined],
    ['it has an ISO beside its image', { flags: { iso: 'debian' } }, undefined],
    ['its config has an ISO', { flags: { image: undefined, config: 'ci' }, config: { iso: 'b' } }, undefined],
    ['an image replaces the ISO of its config', { flags: { config: 'ci' }, config: { iso: 'b' } }, [OWN]],
    ['its config has keys', { flags: { config: 'ci' }, config: { sshAuthorizedKeys: ['a'] } }, undefined],
    ['its config has another OS', { flags: { config: 'ci' }, config: { os: 'Windows' } }, undefined],
    ['its Image has another OS', { image: { os: 'Windows' } }, undefined],
    [
      'the Image of its config has another OS',
      { flags: { config: 'ci' }, config: {}, image: { os: 'MacOS' } },
      undefined,
    ],
    [
      'its image is a reference',
      { flags: { image: 'registry.example/linux:1' }, image: { os: 'MacOS' } },
      [OWN],
    ],
    ['its config says nothing', { flags: { config: 'ci' }, config: { cpu: 2 } }, [OWN]],
  ])('are not changed by it if %s', async (_, behaviour, keys) => {
    expect((await deployed(behaviour)).spec.sshAuthorizedKeys).toEqual(keys);
  });
});

it('waits until the VM is ready, if the user wants that', async () => {
  const ready = (status: string) => ({
    phase: 'Running',
    conditions: [{ type: 'Ready', status, message: '' }],
  });
  const failure = { reason: 'Stopped', message: 'The guest ended', time: '' };
  const running = { ...RUNNING, status: ready('False') };
  const ended = { ...RUNNING, status: { ...ready('False'), phase: 'Failed', failure } };
  const version = [running, ended];
  expect((await deployed({ version })).calls).not.toContain('DELETE');
  server?.close();
  const waiting = deployed({ version, flags: { waitFor: 'ready' } });
  await expect(waiting).rejects.toThrow('The guest ended. VM mac was deleted');
  server?.close();
  const succeeded = await deployed({ version: [running, { ...RUNNING, status: ready('True') }] });
  expect(succeeded.calls).not.toContain('DELETE');
});

it('says in a script why the VM waits, once for each cause, and says nothing to a program', async () => {
  const waiting = (type: string, reason: string, message: string) => ({
    ...RUNNING,
    status: { phase: 'Pending', conditions: [{ type, status: 'False', reason, message }] },
  });
  const version = [
    waiting('Scheduled', 'PodRefused', 'The quota is used up'),
    waiting('Scheduled', 'WaitingForScheduler', 'The VM is waiting for the scheduler'),
    waiting('Scheduled', 'Unschedulable', 'No host is free'),
    waiting('Scheduled', 'Unschedulable', 'No host is free'),
    waiting('ImageReady', 'ImageAccessDenied', 'The registry refuses access'),
    RUNNING,
  ];
  const { out } = await deployed({ version, output: 'table' });
  const lines = out.mock.calls.map(([text]) => text).filter((text) => text.includes(' waits: '));
  expect(lines).toEqual([
    'VM mac waits: The quota is used up\n',
    'VM mac waits: No host is free\n',
    'VM mac waits: The registry refuses access\n',
  ]);
  server?.close();
  const program = await deployed({ version, output: 'json' });
  expect(program.out.mock.calls.flat().join('')).not.toContain('waits');
});
