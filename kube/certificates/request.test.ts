import { createPrivateKey, sign } from 'node:crypto';
import { assert, property, uint8Array } from 'fast-check';
import { describe, expect, it } from 'vitest';
import { encode, InvalidSigningRequestError, readElements, readSigningRequest, TAGS } from './request.ts';
import { createKey, createSigningRequest } from './certificate.ts';

const key = await createKey();
const subject = {
  commonName: 'system:node:host-1',
  organizations: ['system:nodes'],
  dnsNames: ['host-1', 'host-1.example'],
  ipAddresses: ['10.0.0.1', '2001:db8::1', '::1', '1:0:2::3:0'],
};
const pem = await createSigningRequest({ ...subject, key });

function derOf(text: string): Buffer {
  return Buffer.from(text.replaceAll(/-----[^-]+-----|\n/g, ''), 'base64');
}

function pemOf(der: Uint8Array, type = 'CERTIFICATE REQUEST'): string {
  return `-----BEGIN ${type}-----\n${Buffer.from(der).toString('base64')}\n-----END ${type}-----\n`;
}

/** Changes the signed part of a request and signs the part again. */
function resigned(text: string, change: (signedPart: Buffer) => Buffer): string {
  const [request] = readElements(derOf(text));
  const [signedPart, algorithm] = readElements(request?.content ?? Buffer.alloc(0));
  const changed = change(signedPart?.raw ?? Buffer.alloc(0));
  const signature = sign('sha256', changed, createPrivateKey(key.pem));
  const bits = encode(TAGS.bitString, Buffer.from([0]), signature);
  return pemOf(encode(TAGS.sequence, changed, algorithm?.raw ?? Buffer.alloc(0), bits));
}

describe('a request', () => {
  it('is read as it was made', () => {
    const { organizations, ...names } = subject;
    expect(readSigningRequest(pem)).toEqual({ ...names, organization: organizations[0] });
  });

  it('without names is read, with a line feed at its end and without', async () => {
    const bare = await createSigningRequest({ key, commonName: 'a', organizations: ['b'] });
    for (const text of [bare, `${bare}\n`]) {
      expect(readSigningRequest(text)).toEqual({
        commonName: 'a',
        organization: 'b',
        dnsNames: [],
        ipAddresses: [],
      });
    }
  });
});

describe('is refused', () => {
  it.each([
    ['text before it', `text ${pem}`, 'exactly one PEM block'],
    ['a line before it', `text\n${pem}`, 'exactly one PEM block'],
    ['text after it', `${pem}\ntext`, 'exactly one PEM block'],
    ['two blocks', `${pem}\n${pem}`, 'exactly one PEM block'],
    ['a header', pem.replace('\n', '\nProc-Type: 4\n'), 'exactly one PEM block'],
    ['another type', pemOf(derOf(pem), 'NEW CERTIFICATE REQUEST'), 'exactly one PEM block'],
    ['carriage returns', pem.replaceAll('\n', '\r\n'), 'exactly one PEM block'],
    ['padding amid the base64', pem.replace('\n', '\n=\n'), 'base64 is not canonical'],
    ['bytes after it', pemOf(Buffer.concat([derOf(pem), Buffer.alloc(1)])), 'cut off'],
    ['an element after it', pemOf(Buffer.concat([derOf(pem), Buffer.alloc(2)])), 'exactly 1 part'],
    ['more than 8 KiB', `${pem}${'\n'.repeat(8_192)}`, 'longer than 8192 bytes'],
    ['nothing', '', 'exactly one PEM block'],
  ])('%s', (_what, text, why) => {
    expect(() => readSigningRequest(text)).toThrow(why);
  });

  it('a signature that is not its own', () => {
    const der = derOf(pem);
    const last = der.length - 1;
    der.writeUInt8(der.readUInt8(last) ^ 1, last);
    expect(() => readSigningRequest(pemOf(der))).toThrow(
      'not signed with the private key that belongs to its public key',
    );
  });

  it('another version', () => {
    const second = resigned(pem, (signed) => {
      const [part] = readElements(signed);
      const [, ...rest] = readElements(part?.content ?? signed).map(({ raw }) => raw);
      return encode(TAGS.sequence, encode(TAGS.integer, Buffer.from([1])), ...rest);
    });
    expect(() => readSigningRequest(second)).toThrow('not have the form that agents use');
  });

  it('an IPv4 address as IPv6, which Go signs as IPv4', () => {
    const mapped = resigned(pem, (signed) => {
      const ipv6 = Buffer.from('20010db8000000000000000000000001', 'hex');
      Buffer.from('00000000000000000000ffff01020304', 'hex').copy(signed, signed.indexOf(ipv6));
      return signed;
    });
    expect(() => readSigningRequest(mapped)).toThrow('write it with 4 bytes');
  });

  it('something after the last part, which Go skips', () => {
    const longer = resigned(pem, (signed) => {
      const [part] = readElements(signed);
      return encode(TAGS.sequence, part?.content ?? signed, encode(TAGS.integer, Buffer.from([1])));
    });
    expect(() => readSigningRequest(longer)).toThrow('must have exactly 4 parts');
  });

  it.each([
    [
      'an RSA key',
      async () => await createSigningRequest({ ...subject, key: await createKey('RSA') }),
      'not have the form that agents use',
    ],
    [
      'two organizations',
      () => createSigningRequest({ ...subject, organizations: ['a', 'b'], key }),
      'exactly one organization, not 2',
    ],
    [
      'no organization',
      () => createSigningRequest({ commonName: 'a', key }),
      'exactly one organization, not 0',
    ],
    [
      'a name that is not ASCII',
      () => createSigningRequest({ commonName: 'é', organizations: ['b'], key }),
      'printable characters',
    ],
  ] as [string, () => Promise<string>, string][])('%s', async (_what, make, why) => {
    const text = await make();
    expect(() => readSigningRequest(text)).toThrow(why);
  });

  it('any other bytes, with an error of its own', () => {
    assert(
      property(uint8Array({ maxLength: 64 }), (bytes) => {
        expect(() => readSigningRequest(pemOf(bytes))).toThrow(InvalidSigningRequestError);
      }),
    );
  });
});
