/**
 * Sources of images that lead a host to itself, to the metadata service of a cloud or into the cluster. The host must never connect there.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { isIP } from 'node:net';
import { text } from 'node:stream/consumers';
import { assert, constantFrom, integer, oneof, property, tuple } from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Addresses } from '../../base/addresses.ts';
import { limitTime } from '../../base/exec.ts';
import { hostileRuns, tried } from './support/attempts.ts';
import type { SourceResult, SourceWork } from '../worlds/sourceworker.ts';

const OWN = '192.0.2.77';
const CLUSTER = ['10.96.0.0/12', 'fd77::/48'];
const WORKER = new URL('../worlds/sourceworker.ts', import.meta.url).pathname;
/** Time limit of some hundred attempts, some of which wait before they try again. */
const WORKER_MILLISECONDS = 240_000;
const TEST_MILLISECONDS = 300_000;

const FORBIDDEN = {
  loopback: ['127.0.0.1', '127.255.255.254', '0.0.0.0', '::1', '::ffff:127.0.0.1'],
  'the host itself': [OWN, `::ffff:${OWN}`],
  'the link': ['169.254.1.1', 'fe80::1'],
  "a cloud's metadata": [
    '169.254.169.254',
    '169.254.170.2',
    '100.100.100.200',
    '168.63.129.16',
    'fd00:ec2::254',
    'fd20:ce::254',
  ],
  'the cluster': ['10.96.0.1', '10.111.255.255', 'fd77::1'],
  'an IPv4 address in an IPv6 one': [
    '64:ff9b::a9fe:a9fe',
    '64:ff9b::7f00:1',
    '64:ff9b::a60:1',
    '::7f00:1',
    '2002:7f00:1::',
  ],
  'no server': ['240.0.0.1', '64:ff9b:1::1'],
};
/** Connections to these allowed addresses show that the test sees connections at all. */
const OPEN = ['10.0.0.9', '2001:db8::9', '64:ff9b::a00:9'];
const REFUSED = /The address of \S+ is not allowed for images/;

async function attempts(work: SourceWork): Promise<SourceResult[]> {
  const child = spawn('unshare', ['--net', '--mount', process.execPath, WORKER, JSON.stringify(work)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  limitTime(child, WORKER_MILLISECONDS);
  try {
    const [printed, [code]] = await Promise.all([text(child.stdout), once(child, 'exit')]);
    expect(code).toBe(0);
    return JSON.parse(printed) as SourceResult[];
  } finally {
    child.kill('SIGKILL');
  }
}

/** Returns whether the source was refused. Some addresses cannot be written in an image reference, and their name is refused. */
function isRefused({ way, reason, message }: SourceResult): boolean {
  const isUnreadable = way === 'registry: literal' && reason === 'ImageSourceUnsupported';
  return isUnreadable || (reason === 'ImageFetchFailed' && REFUSED.test(message));
}

describe('a source at a forbidden address', () => {
  it('is refused before the host connects, whichever way it leads there', {
    timeout: TEST_MILLISECONDS,
  }, async (context) => {
    const addresses = [...Object.values(FORBIDDEN).flat(), ...OPEN];
    const results = await attempts({ addresses, clusterCIDRs: CLUSTER, ownAddress: OWN });
    expect(results).toHaveLength(addresses.length * 9);
    const open = results.filter(({ address }) => OPEN.includes(address));
    expect(open.filter(({ connections }) => connections === 0)).toEqual([]);
    for (const [kind, group] of Object.entries(FORBIDDEN)) {
      for (const result of results.filter(({ address }) => group.includes(address))) {
        const { way, connections } = result;
        const what = isRefused(result) ? 'refused' : `${result.reason}: ${result.message}`;
        tried(context, `${way} to ${kind}`, `${what}, ${connections} connections`);
        expect.soft([isRefused(result), connections], JSON.stringify(result)).toEqual([true, 0]);
      }
    }
  });
});

/** IPv4 networks from which nothing may be fetched: the first address, and the number of addresses. */
const NETWORKS: [number, number][] = [
  [0x00_00_00_00, 2 ** 24],
  [0x7f_00_00_00, 2 ** 24],
  [0xa9_fe_00_00, 2 ** 16],
  [0x64_64_64_c8, 1],
  [0xa8_3f_81_10, 1],
  [0x0a_60_00_00, 2 ** 20],
  [0xe0_00_00_00, 2 ** 29],
];

const forbidden4 = tuple(constantFrom(...NETWORKS), integer({ min: 0, max: 2 ** 32 - 1 })).map(
  ([[first, count], offset]) => first + (offset % count),
);

function bytes(address: number): [number, number, number, number] {
  return [address >>> 24, (address >>> 16) & 255, (address >>> 8) & 255, address & 255];
}

function dotted(address: number): string {
  return bytes(address).join('.');
}

function groups(address: number): string {
  return `${(address >>> 16).toString(16)}:${(address & 0xffff).toString(16)}`;
}

/** All ways to write an IPv4 address that some reader has ever accepted. */
const FORMS: Record<string, (address: number) => string> = {
  dotted,
  decimal: (address) => String(address),
  hexadecimal: (address) => `0x${address.toString(16)}`,
  octal: (address) => `0${address.toString(8)}`,
  'hexadecimal parts': (address) =>
    bytes(address)
      .map((part) => `0x${part.toString(16)}`)
      .join('.'),
  'octal parts': (address) =>
    bytes(address)
      .map((part) => `0${part.toString(8)}`)
      .join('.'),
  'parts filled with zeros': (address) =>
    bytes(address)
      .map((part) => `0x${part.toString(16).padStart(4, '0')}`)
      .join('.'),
  'two parts': (address) => `${address >>> 24}.${address & 0xff_ff_ff}`,
  'three parts': (address) => `${address >>> 24}.${(address >>> 16) & 255}.${address & 0xffff}`,
  'full-width digits': (address) =>
    dotted(address).replaceAll(/\d/g, (digit) => String.fromCodePoint(0xff10 + Number(digit))),
  'with a dot at its end': (address) => `${dotted(address)}.`,
  percent: (address) => dotted(address).replaceAll(/\d/g, (digit) => `%3${digit}`),
  mapped: (address) => `[::ffff:${dotted(address)}]`,
  'mapped, in groups': (address) => `[::FFFF:${groups(address)}]`,
  'mapped, in full': (address) => `[0:0:0:0:0:ffff:${groups(address)}]`,
  compatible: (address) => `[::${dotted(address)}]`,
  translated: (address) => `[::ffff:0:${dotted(address)}]`,
  'behind a NAT64': (address) => `[64:ff9b::${dotted(address)}]`,
  "behind a network's own NAT64": (address) => `[64:ff9b:1::${groups(address)}]`,
  '6to4': (address) => `[2002:${groups(address)}::1]`,
};
const ZONES = ['', '%lo', '%25eth0', '%1'];

const rules = new Addresses({ clusterCIDRs: CLUSTER, advice: 'none' });
const RUNS = 100_000;

describe('a forbidden address', () => {
  it('is recognised in every notation', (context) => {
    const written = oneof(tuple(constantFrom(...Object.keys(FORMS)), forbidden4, constantFrom(...ZONES)));
    assert(
      property(written, ([form, address, zone]) => {
        const host = FORMS[form]?.(address) ?? '';
        const asked = host.startsWith('[') ? host.replace(']', `${zone}]`) : host;
        // The notations are read as in the source of an image, and as the resolver of the kernel returns addresses.
        const url = URL.parse(`http://${asked}/disk`)?.hostname.replaceAll(/^\[|\]$/g, '');
        const plain = asked.replaceAll(/^\[|\]$/g, '');
        const read = [url, plain].filter((each) => each !== undefined && isIP(each) !== 0);
        const open = read.filter((each) => each !== undefined && rules.refusal(each) === undefined);
        tried(
          context,
          `IPv4 address, ${form}`,
          read.length === 0 ? 'no address' : open.length === 0 ? 'refused' : 'open',
        );
        expect([asked, ...open]).toEqual([asked]);
      }),
      hostileRuns(RUNS),
    );
  });
});
