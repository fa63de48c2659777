import { mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Secret } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import type { Host } from './host.ts';
import { newRecord } from './machine.ts';
import { prepareVnc, readVncPassword } from './vnc.ts';

const VM = { namespace: 'platform-ci', name: 'desk', uid: 'vm-2' };
const PASSWORD = 'aB3-_x9z';

function reader(secret: Partial<Secret> | undefined): Pick<KubeClient, 'get'> {
  const get = async (_: unknown, ref: object): Promise<unknown> => {
    expect(ref).toEqual({ namespace: 'platform-ci', name: 'desk-vnc' });
    if (secret === undefined) {
      throw new ApiError('not found', { status: 404, reason: 'NotFound' });
    }
    return secret;
  };
  return { get } as unknown as Pick<KubeClient, 'get'>;
}

function secretOf(uid: string, password: string): Partial<Secret> {
  const ownerReferences = [{ apiVersion: 'berth.dev/v1alpha1', kind: 'VM', name: 'desk', uid }];
  const data = { password: Buffer.from(password).toString('base64') };
  return { metadata: { name: 'desk-vnc', ownerReferences }, data };
}

test('the password comes from the Secret that the VM owns', async () => {
  await expect(readVncPassword(reader(secretOf('vm-2', PASSWORD)), VM)).resolves.toBe(PASSWORD);
});

test.each<[string, Partial<Secret> | undefined]>([
  ['no Secret', undefined],
  ['the Secret of an earlier VM', secretOf('vm-1', PASSWORD)],
  ['a Secret without an owner', { ...secretOf('vm-2', PASSWORD), metadata: { name: 'desk-vnc' } }],
  ['a password that VNC would cut', secretOf('vm-2', 'longer than eight')],
  ['a password with a line break', secretOf('vm-2', 'seven..\n')],
  ['a Secret without a password', { ...secretOf('vm-2', PASSWORD), data: {} }],
])('with %s the machine waits, and the message has no password', async (_, secret) => {
  const error = await readVncPassword(reader(secret), VM).catch((caught: unknown) => caught);
  expect(error).toMatchObject({ reason: 'VNCSecretNotFound' });
  expect(String(error)).not.toMatch(/aB3|longer than|seven/);
});

test('while the API server cannot read Secrets, the machine waits', async () => {
  const get = async () => {
    throw new ApiError('the key service is away', { status: 500, reason: 'InternalError' });
  };
  const asked = readVncPassword({ get }, VM);
  await expect(asked).rejects.toMatchObject({ reason: 'SecretNotRead' });
});

test('the password stays in a file of the agent, so that the next start needs no Secret', async () => {
  const path = mkdtempSync(join(tmpdir(), 'berth-vnc-'));
  onTestFinished(() => rmSync(path, { recursive: true }));
  const machine = { vm: VM } as Machine;
  const claim = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  const record = newRecord({ uid: 'pod', key: 'platform-ci/desk', driver: 'qemu', machine, claim });
  const folder = { uid: 'pod', path };
  const passwords = [PASSWORD];
  const host = { forwardAddress: '192.0.2.1', vncPassword: async () => passwords.pop() } as unknown as Host;
  expect(await prepareVnc(host, { record, folder })).toBeUndefined();
  record.automaticPorts = [
    { name: '6299-tcp', protocol: 'TCP', hostPort: 6299, guestPort: 0, automatic: true },
  ];
  const vnc = { address: '192.0.2.1', port: 6299, passwordFile: 'vnc.password' };
  expect(await prepareVnc(host, { record, folder })).toEqual(vnc);
  expect(await prepareVnc(host, { record, folder })).toEqual(vnc);
  const file = join(path, vnc.passwordFile);
  expect([readFileSync(file, 'utf8'), statSync(file).mode & 0o777]).toEqual([PASSWORD, 0o600]);
});
