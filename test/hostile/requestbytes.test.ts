/** Certificate requests with changed bytes. If the operator's reader accepts one, Go must read the same names. */
import { sample } from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  InvalidSigningRequestError,
  readSigningRequest,
  type SigningRequest,
  TAGS,
} from '../../kube/certificates/request.ts';
import { createKey, type PrivateKey } from '../../kube/certificates/certificate.ts';
import { hostileRuns, tried } from './support/attempts.ts';
import { GO_BUILD_MILLISECONDS, GoParser } from './support/goparser.ts';
import { changeParts, flip, kindOf, type Mutation, mutations, wrap } from './support/mutations.ts';
import * as make from './support/requests.ts';

const REQUESTS = 40_000;
/** Time limit. Some thousands of requests take seconds, all of them take minutes. */
const TEST_MILLISECONDS = 600_000;

let go: GoParser;
let key: PrivateKey;
let bases: Buffer[];

beforeAll(async () => {
  go = await GoParser.build();
  key = await createKey();
  const { commonName, dns, extensionRequest, ip, names, organization, rdn, signedPart, value } = make;
  const printable = (type: string, text: string) => rdn(value(type, text, TAGS.printableString));
  const ipv6 = make.rawIP(Buffer.from('20010db8000000000000000000000007', 'hex'));
  bases = [
    { subject: [organization(), commonName('a')] },
    {
      subject: [
        printable(make.OIDS.commonName, 'system:node:b'),
        printable(make.OIDS.organization, 'system:nodes'),
      ],
    },
    {
      subject: [organization(), commonName('c')],
      attributes: [extensionRequest(names(ip('10.0.0.1'), ipv6, dns('c.example')))],
    },
    { subject: [organization(), commonName('d')], attributes: [extensionRequest(names(ip('10.0.0.2')))] },
  ].map((forgery) => signedPart(key, forgery));
}, GO_BUILD_MILLISECONDS);

afterAll(async () => {
  await go?.[Symbol.asyncDispose]();
});

function requestOf({ base, changes, flips, wrapping }: Mutation): string {
  const signed = (which: number) => bases[which % bases.length] ?? Buffer.alloc(0);
  const request = make.signedWith(key, changeParts(signed(base), changes));
  const other = make.pemOf(make.signedWith(key, signed(base + 1)));
  return wrap(make.pemOf(flip(request, flips)), wrapping, other);
}

function readingOf(pem: string): SigningRequest | undefined {
  try {
    return readSigningRequest(pem);
  } catch (error) {
    expect(error).toBeInstanceOf(InvalidSigningRequestError);
    return undefined;
  }
}

test('Go reads the same names in each request that the operator accepts', {
  timeout: TEST_MILLISECONDS,
}, async (context) => {
  const tries = sample(mutations, hostileRuns(REQUESTS)).map((mutation) => ({
    mutation,
    pem: requestOf(mutation),
  }));
  const readings = await go.read(
    tries.map(({ pem }) => ({ kind: 'request', pem: Buffer.from(pem, 'latin1') })),
  );
  const outcomes = { same: 0, refused: 0, refusedByUsAlone: 0 };
  for (const [index, { mutation, pem }] of tries.entries()) {
    const ours = readingOf(pem);
    const { error, ...theirs } = readings[index] ?? { error: 'no answer' };
    if (ours !== undefined) {
      const { organization, ...rest } = ours;
      expect({ pem, error, ...theirs }).toEqual({
        pem,
        error: undefined,
        ...rest,
        organizations: [organization],
        others: [],
      });
    }
    const outcome = ours !== undefined ? 'same' : error === undefined ? 'refusedByUsAlone' : 'refused';
    outcomes[outcome] += 1;
    tried(context, `request: ${kindOf(mutation)}`, SAID[outcome]);
  }
  // If one outcome were rarer, the changes would be too small or too large to show anything.
  expect(Math.min(...Object.values(outcomes))).toBeGreaterThan(tries.length / 100);
});

const SAID = {
  same: 'read as Go reads it',
  refused: 'refused by both',
  refusedByUsAlone: 'refused by us, though Go reads it',
} as const;
