/** The API server checks the fields with data for guests. */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { VMSpec } from '../../api/v1alpha1/vm.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { VM_CONFIGS, VMS } from '../../api/v1alpha1/resources.ts';
import { LARGEST_GUEST_DATA, largestMetadata, PUBLIC_KEYS } from '../fixtures/guestdata.ts';
import { sharedCluster } from '../support/cluster.ts';

const namespace = `platform-guestdata-${randomBytes(4).toString('hex')}`;
const [KEY] = PUBLIC_KEYS;
const KEY_FORM = 'must be one line of an OpenSSH public key file';

let cluster: Cluster;
let made = 0;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', namespace, '--wait=false']);
});

/** Creates an object with a new name. A VM also has an image. Nobody pulls it, because no operator runs. */
async function create(kind: 'VM' | 'VMConfig', fields: Partial<VMSpec>): Promise<unknown> {
  made += 1;
  const metadata = { name: `guest-${made}`, namespace };
  return kind === 'VM'
    ? await cluster.client().create(VMS, { metadata, spec: { image: 'any', ...fields } })
    : await cluster.client().create(VM_CONFIGS, { metadata, spec: fields });
}

describe('data for a guest', () => {
  it('of the largest size is accepted', async () => {
    await expect(create('VM', LARGEST_GUEST_DATA)).resolves.toMatchObject({ spec: LARGEST_GUEST_DATA });
  });

  const largestKeys = LARGEST_GUEST_DATA.sshAuthorizedKeys;
  it.each<[string, Partial<VMSpec>, string, string]>([
    ['user data with a control character', { userData: 'a\u001b' }, 'userData', 'control characters'],
    ['user data of more than 16 KiB', { userData: 'x'.repeat(16_385) }, 'userData', '16384'],
    ['a value of more than 32 KiB', { guestMetadata: { k: 'x'.repeat(32_769) } }, 'guestMetadata', '32768'],
    [
      'a control character in a value',
      { guestMetadata: { k: '\u0000' } },
      'guestMetadata',
      'control characters',
    ],
    ['metadata of more than 128 KiB', { guestMetadata: largestMetadata(1) }, 'guestMetadata', '131072 bytes'],
    ['a standard key', { guestMetadata: { host: 'x' } }, 'guestMetadata', 'id, name, namespace, host'],
    ['33 SSH keys', { sshAuthorizedKeys: Array.from({ length: 33 }, () => KEY) }, 'sshAuthorizedKeys', '32'],
    [
      'SSH keys of more than 32 KiB',
      { sshAuthorizedKeys: [...largestKeys, ...largestKeys] },
      'sshAuthorizedKeys',
      '32768',
    ],
  ])('with %s is refused', async (_, fields, field, expected) => {
    const refusal: unknown = await create('VM', fields).catch(String);
    expect(refusal).toEqual(expect.stringContaining(`spec.${field}`));
    expect(refusal).toEqual(expect.stringContaining(expected));
  });
});

describe.each(['VM', 'VMConfig'] as const)('the SSH keys of a %s', (kind) => {
  it('may be of each type that OpenSSH accepts, with a comment or without', async () => {
    const sshAuthorizedKeys = [...PUBLIC_KEYS, ...PUBLIC_KEYS.map((key) => key.replace(/ me@desk$/, ''))];
    await expect(create(kind, { sshAuthorizedKeys })).resolves.toMatchObject({ spec: { sshAuthorizedKeys } });
  });

  it.each([
    ['options', `command="reboot" ${KEY}`],
    ['two lines', `${KEY}\n${KEY}`],
    ['a line end', `${KEY}\n`],
    ['an unknown type', KEY.replace('ssh-ed25519', 'ssh-ed25518')],
    ['another type than they say', `ssh-rsa ${KEY.split(' ')[1]}`],
    ['a private key', '-----BEGIN OPENSSH PRIVATE KEY-----'],
    ['no base64', 'ssh-ed25519'],
    ['a tab', KEY.replace(' me', '\tme')],
    ['nothing', ''],
  ])('are refused with %s', async (_, key) => {
    const refusal: unknown = await create(kind, { sshAuthorizedKeys: [key] }).catch(String);
    expect(refusal).toEqual(expect.stringContaining('spec.sshAuthorizedKeys[0]'));
    expect(refusal).toEqual(expect.stringContaining(KEY_FORM));
  });
});
